"""Entry point of vLLM's ``vllm.general_plugins``: makes the slot-token model known in every process of vLLM."""

ARCHITECTURE = "TritonSpeechSlotTokens"


def register() -> None:
    """Called by vLLM before it reads a model's configuration."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "triton_speech.engine.vllm.model:SlotTokenModel")
