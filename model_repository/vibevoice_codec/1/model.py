from triton_speech.stage.codec import CodecStage


class TritonPythonModel(CodecStage):
    family = "vibevoice"
