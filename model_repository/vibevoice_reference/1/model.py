from triton_speech.stage.reference import ReferenceStage


class TritonPythonModel(ReferenceStage):
    family = "vibevoice"
