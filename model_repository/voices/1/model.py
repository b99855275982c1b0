from triton_speech.stage.voices import VoicesStage


class TritonPythonModel(VoicesStage):
    pass
