from triton_speech.stage.talker import TalkerStage


class TritonPythonModel(TalkerStage):
    family = "voxcpm2"
