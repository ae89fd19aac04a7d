//! Networks on a meter: the weights that they ask for, and the products that they take.

use tilewright_kernels::Rate;
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Needed, Scope};

use crate::Result;

/// A meter of f32 tensors that knows no device.
pub(crate) fn plain(costs: Costs) -> Meter {
    Meter::new(ComputeFormat::single(), costs)
}

/// A meter whose seconds are the products of convolutions and linear layers.
pub(crate) fn counting_products() -> Meter {
    let each = Rate { per_product: 1.0, per_value: 0.0 };
    plain(Costs { plain: each, products: each, ..Costs::default() })
}

/// A network on a meter.
#[derive(Debug)]
pub(crate) struct Built<N> {
    pub network: N,
    /// Bytes of its weights, as they are laid out in the meter's format.
    pub weight_bytes: u64,
}

/// Builds a network on a meter that has built none before.
///
/// # Errors
/// The architecture's widths don't go together.
pub(crate) fn build<N>(meter: &Meter, build: impl FnOnce(&Scope<'_, Meter>) -> Result<N>) -> Result<Built<N>> {
    let listing = Listing::default();
    let network = build(&Scope::new(&listing, meter))?;
    Ok(Built { network, weight_bytes: listing.bytes().saturating_add_signed(meter.weights_grown()) })
}

/// Builds a network on a meter of no device; gives it with the weights that it asks for.
///
/// # Errors
/// As [`build`].
pub(crate) fn list_weights<N>(build: impl FnOnce(&Scope<'_, Meter>) -> Result<N>) -> Result<(N, Vec<Needed>)> {
    let listing = Listing::default();
    let network = build(&Scope::new(&listing, &plain(Costs::default())))?;
    Ok((network, listing.into_needed()))
}

/// The share of each layer in the work between the first of these ends of layers and the last; they
/// add up to 1.
pub(crate) fn shares(ends: &[f64]) -> Vec<f64> {
    let all = ends.last().zip(ends.first()).map_or(0.0, |(last, first)| last - first).max(1e-9);
    ends.windows(2).map(|pair| (pair[1] - pair[0]) / all).collect()
}
