import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Flag, Momentum
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import wide


@NORMS("batchnorm")
class BatchNorm(nn.Module):
    """gain * (x - batch_mean(x)) / sqrt(batch_var(x) + eps) + bias

    Ioffe & Szegedy 2015, arXiv:1502.03167. Statistics of a feature over batch and time: while it
    trains, a token is normalized by tokens that come after it. Evaluation takes running averages.
    """

    causal = False
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        width: int,
        *,
        eps: Epsilon = 1e-5,
        momentum: Momentum = 0.1,
        allow_noncausal: Flag = False,
    ) -> None:
        super().__init__()
        self.eps, self.momentum, self.allow_noncausal = eps, momentum, allow_noncausal
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        tokens = wide(x).reshape(-1, x.shape[-1])
        mean, var, gain, bias = (
            kept.to(tokens.dtype)
            for kept in (self.running_mean, self.running_var, self.gain, self.bias)
        )
        if self.training:
            y = F.batch_norm(tokens, None, None, gain, bias, True, eps=self.eps)
            self.follow(tokens.detach())
        else:
            y = F.batch_norm(tokens, mean, var, gain, bias, False, eps=self.eps)
        return y.view_as(x).to(x.dtype)

    def follow(self, tokens: Tensor) -> None:
        """The running averages move towards these tokens; that of the variance is unbiased. They
        stay where these are not finite: a run that diverges keeps what it had."""
        var, mean = torch.var_mean(tokens, 0)
        for kept, here in ((self.running_mean, mean), (self.running_var, var)):
            finite = torch.where(here.isfinite(), here.to(kept.dtype), kept)
            kept.lerp_(finite, self.momentum)
