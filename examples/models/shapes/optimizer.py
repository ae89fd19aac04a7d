"""Muon: momentum with orthogonalised updates (Jordan et al., 2024), for the matrices of a transformer.

Version: torch 2.11.0.
"""

import torch


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are updated together."""

    def __init__(self, parameters, lr, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                    state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(parameter.grad.lerp(state["momentum"], group["momentum"]))
                scale = max(1, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, orthogonal(torch.stack(updates))):
                    parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrices):
    """The nearest half-orthogonal matrices, by five Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def optimizers(network, others, muon_rate, adam_rate):
    """Muon for the matrices inside of blocks, AdamW for everything else."""
    inner, outer = [], [parameter for module in others for parameter in module.parameters()]
    for name, parameter in network.named_parameters():
        (inner if parameter.ndim == 2 and "blocks" in name else outer).append(parameter)
    return [Muon(inner, lr=muon_rate), torch.optim.AdamW(outer, lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0)]
