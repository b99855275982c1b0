from triton_speech.stage.front_door import FrontDoorStage


class TritonPythonModel(FrontDoorStage):
    family = "voxcpm2"
