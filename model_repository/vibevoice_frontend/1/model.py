from triton_speech.stage.frontend import FrontendStage


class TritonPythonModel(FrontendStage):
    family = "vibevoice"
