from triton_speech.stage.diffusion import DiffusionStage


class TritonPythonModel(DiffusionStage):
    family = "voxcpm2"
