"""torch.distributions: samples with the CPU's seed, densities, entropies and divergences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch import distributions as d

import torch_remote

Make = Callable[[Callable[[Any], torch.Tensor]], d.Distribution]
P, Q = [0.3, 0.7], [1.5, 2.5]

KINDS: dict[str, Make] = {
    "Bernoulli": lambda t: d.Bernoulli(t(P)),
    "Beta": lambda t: d.Beta(t(P), t(Q)),
    "Binomial": lambda t: d.Binomial(5, t(P)),
    "Categorical": lambda t: d.Categorical(t(P)),
    "Cauchy": lambda t: d.Cauchy(t(P), t(Q)),
    "Chi2": lambda t: d.Chi2(t(Q)),
    "ContinuousBernoulli": lambda t: d.ContinuousBernoulli(t(P)),
    "Dirichlet": lambda t: d.Dirichlet(t(Q)),
    "Exponential": lambda t: d.Exponential(t(Q)),
    "FisherSnedecor": lambda t: d.FisherSnedecor(t(Q), t(Q)),
    "Gamma": lambda t: d.Gamma(t(P), t(Q)),
    "GeneralizedPareto": lambda t: d.GeneralizedPareto(t(P), t(Q), t(P)),
    "Geometric": lambda t: d.Geometric(t(P)),
    "Gumbel": lambda t: d.Gumbel(t(P), t(Q)),
    "HalfCauchy": lambda t: d.HalfCauchy(t(Q)),
    "HalfNormal": lambda t: d.HalfNormal(t(Q)),
    "Independent": lambda t: d.Independent(d.Normal(t(P), t(Q)), 1),
    "InverseGamma": lambda t: d.InverseGamma(t(Q), t(Q)),
    "Kumaraswamy": lambda t: d.Kumaraswamy(t(Q), t(Q)),
    "LKJCholesky": lambda t: d.LKJCholesky(3, t(1.5)),
    "Laplace": lambda t: d.Laplace(t(P), t(Q)),
    "LogNormal": lambda t: d.LogNormal(t(P), t(Q)),
    "LogisticNormal": lambda t: d.LogisticNormal(t(P), t(Q)),
    "LowRank": lambda t: d.LowRankMultivariateNormal(t(P), t([[1.0], [2.0]]), t(Q)),
    "Mixture": lambda t: d.MixtureSameFamily(d.Categorical(t(P)), d.Normal(t(P), t(Q))),
    "Multinomial": lambda t: d.Multinomial(5, t(P)),
    "MultivariateNormal": lambda t: d.MultivariateNormal(t(P), t([[2.0, 0.5], [0.5, 1.0]])),
    "NegativeBinomial": lambda t: d.NegativeBinomial(t([5.0, 5.0]), t(P)),
    "Normal": lambda t: d.Normal(t(P), t(Q)),
    "OneHotCategorical": lambda t: d.OneHotCategorical(t(P)),
    "OneHotStraightThrough": lambda t: d.OneHotCategoricalStraightThrough(t(P)),
    "Pareto": lambda t: d.Pareto(t(Q), t(Q)),
    "Poisson": lambda t: d.Poisson(t(Q)),
    "RelaxedBernoulli": lambda t: d.RelaxedBernoulli(t(1.0), t(P)),
    "RelaxedOneHot": lambda t: d.RelaxedOneHotCategorical(t(1.0), t(P)),
    "StudentT": lambda t: d.StudentT(t(Q)),
    "Transformed": lambda t: d.TransformedDistribution(
        d.Normal(t(P), t(Q)), [d.SigmoidTransform(), d.AffineTransform(t(1.0), t(2.0))]
    ),
    "Uniform": lambda t: d.Uniform(t(P), t(Q)),
    "VonMises": lambda t: d.VonMises(t(P), t(Q)),
    "Weibull": lambda t: d.Weibull(t(Q), t(Q)),
    "Wishart": lambda t: d.Wishart(t(3.0), t([[2.0, 0.5], [0.5, 1.0]])),
}


def figures(make: Make, device: str) -> list[torch.Tensor]:
    """All that a distribution can tell."""
    made = make(lambda values: torch.tensor(values).to(device))
    torch.manual_seed(3)
    sample = made.sample((2,))
    asked: list[Callable[[], torch.Tensor]] = [
        lambda: sample,
        lambda: made.rsample((2,)),
        lambda: made.log_prob(sample),
        made.entropy,
        lambda: made.cdf(sample),
        lambda: made.mean,
        lambda: made.variance,
        lambda: d.kl_divergence(made, made),
    ]
    told = []
    for ask in asked:
        try:
            told.append(ask())
        except NotImplementedError:
            told.append(torch.tensor(0).to(device))
    assert all(each.device.type == device for each in told)
    return told


@pytest.mark.filterwarnings("ignore:Singular sample detected")
@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_figures_are_the_cpus(kind: str) -> None:
    assert_same(figures(KINDS[kind], "remote"), figures(KINDS[kind], "cpu"))


def test_a_wrong_parameter_is_refused_as_on_the_cpu() -> None:
    scale = torch.tensor([1.0, -1.0], device="remote")
    with pytest.raises(ValueError, match="parameter scale"):  # PyTorch's compiler sets the default
        d.Normal(torch.zeros(2, device="remote"), scale, validate_args=True)


def test_without_validation_nothing_waits() -> None:
    mean, scale = (torch.tensor(values, device="remote") for values in (P, Q))
    with torch_remote.count() as counted:
        normal = d.Normal(mean, scale, validate_args=False)
        loss = normal.log_prob(normal.rsample((100,))).sum() + d.kl_divergence(normal, normal).sum()
    assert counted.syncs == 0
    assert loss.isfinite().item()
