"""Which embeddings are trained and which take another's place: capitals, and what no text has."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tokenizer import AUDIO_START, REF_AUDIO_END, REF_AUDIO_START, WORD_START, Tokenizer

_MARKS = (AUDIO_START, REF_AUDIO_START, REF_AUDIO_END)


class Vocabulary:
    """Ids (V,) int64 that every id is read as."""

    def __init__(self, tokenizer: Tokenizer, size: int, *, share_case: bool) -> None:
        self.read_as = torch.arange(size)
        tokens = {token: index for index in range(size) if (token := tokenizer.token(index)) is not None}
        self.space = tokens.get(WORD_START, 0)
        self._seen = torch.zeros(size, dtype=torch.bool)
        self._seen[list(_MARKS)] = True
        if share_case:
            for token, index in tokens.items():
                lower = token.lower()
                if len(lower) == len(token) == 1 and lower != token and lower in tokens:
                    self.read_as[index] = tokens[lower]

    def read(self, ids: list[int]) -> list[int]:
        """The ids to train on; they count as seen."""
        read = self.read_as[torch.tensor(ids)]
        self._seen[read] = True
        return list(read.tolist())

    def spread(self, embeddings: Tensor) -> Tensor:
        """(V, H) with the rows of ids that were not trained filled: by what they are read as, else by the space's."""
        source = torch.where(self._seen, torch.arange(len(self.read_as)), torch.full_like(self.read_as, self.space))
        return embeddings[source[self.read_as].to(embeddings.device)]
