//! Division of libtorch's operations: what is expected to take long runs in pieces, between which a
//! cancellation is looked at. Without a [`crate::cancel::Scope`] nothing is divided.

use std::{ops::Range, rc::Rc, time::Duration};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Measured, Rate};

use crate::{
    Result,
    cancel::{self, Current},
    kind,
};

/// About the longest time of a piece.
pub const PIECE: Duration = Duration::from_millis(500);

/// Rows of pieces are multiples of this: libtorch's kernels block them by it or by less, so that
/// each row of the result has the same bits as without a division.
const UNIT: i64 = 256;

/// The fewest rows of a piece: libtorch's fused attention blocks fewer otherwise (pytorch v2.11.0,
/// aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
const LEAST: i64 = 768;

/// The pieces of what is divided at all, at least: each holds its part of the operands or of the
/// result once more, which is then little beside the whole.
const LEAST_PIECES: f64 = 16.0;

/// Operations per second of what was not measured, such as a type that nobody asks for.
const UNMEASURED: f64 = 2e10;

/// The speed of one type on a device; the least of its memory orders.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OfKind {
    kind: Kind,
    /// Operations per second, a multiply-add counted as two.
    products: f64,
    attention: f64,
    /// Seconds per pixel and tap.
    convolution: Rate,
}

/// The measured speed of a device's operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    device: Option<Device>,
    of: Vec<OfKind>,
}

/// An operation, by what its time depends on.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Matrix products, in operations: a multiply-add counts as two.
    Product(f64),
    /// Attention, likewise.
    Attention(f64),
    /// A convolution: pixels of the output times taps, and channels of the input and the output.
    Convolution {
        /// Pixels times taps.
        taps: f64,
        /// Channels of the input and of the output.
        channels: [f64; 2],
    },
}

impl Rates {
    /// The rates of a device.
    pub fn of(device: Device, measured: &Measured) -> Self {
        let mut of: Vec<OfKind> = Vec::new();
        for speed in &measured.speeds {
            let Ok(kind) = kind(speed.dtype) else { continue };
            let (products, attention) = (speed.flops_per_second, speed.attention_flops_per_second);
            let new = OfKind { kind, products, attention, convolution: speed.plain };
            match of.iter_mut().find(|of| of.kind == kind) {
                None => of.push(new),
                Some(of) => {
                    let is_slower = new.products < of.products;
                    of.convolution = if is_slower { new.convolution } else { of.convolution };
                    of.products = of.products.min(new.products);
                    of.attention = of.attention.min(new.attention);
                }
            }
        }
        Self { device: Some(device), of }
    }

    /// The seconds that an operation on a device is expected to take.
    fn seconds(&self, device: Device, kind: Kind, operation: Operation) -> f64 {
        let known = self.of.iter().find(|of| of.kind == kind).filter(|_| self.device == Some(device));
        match (operation, known) {
            (Operation::Product(operations), Some(known)) => operations / known.products,
            (Operation::Attention(operations), Some(known)) => operations / known.attention,
            (Operation::Convolution { taps, channels: [into, out] }, Some(known)) => {
                taps * known.convolution.of(into, out)
            }
            (Operation::Product(operations) | Operation::Attention(operations), None) => operations / UNMEASURED,
            (Operation::Convolution { taps, channels: [into, out] }, None) => 2.0 * taps * into * out / UNMEASURED,
        }
    }
}

/// The pieces of an operation over rows of its result.
pub struct Pieces {
    current: Option<Rc<Current>>,
    device: Device,
    kind: Kind,
    rows: i64,
    /// Rows of a piece, and the fewest that the last one may have: fewer join the one before.
    step: i64,
    least: i64,
    done: i64,
    /// Expected seconds of a row.
    each: f64,
}

impl Pieces {
    /// The pieces of an operation on a device: one, unless it is expected to take long.
    pub fn of(device: Device, kind: Kind, rows: i64, operation: Operation) -> Self {
        Self::in_units(device, kind, rows, operation, [UNIT, LEAST])
    }

    /// The same in multiples of `unit` rows, and at least `least` of them.
    pub(crate) fn in_units(
        device: Device,
        kind: Kind,
        rows: i64,
        operation: Operation,
        [unit, least]: [i64; 2],
    ) -> Self {
        let current = cancel::current();
        let seconds = current.as_ref().map_or(0.0, |current| current.rates.seconds(device, kind, operation));
        let count = seconds / PIECE.as_secs_f64();
        let count = if count > 1.0 { count.ceil().max(LEAST_PIECES) as i64 } else { 1 };
        let step = (rows / count).max(least).max(1);
        let step = if step >= rows { rows.max(1) } else { step / unit * unit };
        Self { current, device, kind, rows, step, least, done: 0, each: seconds / rows.max(1) as f64 }
    }

    /// The same in pieces of no more than `most` rows.
    #[must_use]
    pub fn of_at_most(self, most: i64) -> Self {
        if most >= self.step { self } else { Self { step: most.max(1), least: 0, ..self } }
    }

    /// True if there is but one.
    pub fn is_whole(&self) -> bool {
        self.rows < self.step + self.least.max(1)
    }

    /// The rows of the next piece, which is about to begin; none if all are done.
    ///
    /// # Errors
    /// [`crate::Error::Cancelled`]; a fault of earlier work on the device.
    pub fn begin(&mut self) -> Result<Option<Range<i64>>> {
        if self.done >= self.rows {
            return Ok(None);
        }
        let start = self.done;
        let end = start + self.step;
        self.done = if self.rows < end + self.least.max(1) { self.rows } else { end };
        if let Some(current) = &self.current {
            current.queue(self.device, self.each * (self.done - start) as f64, PIECE.as_secs_f64())?;
        }
        Ok(Some(start..self.done))
    }

    /// Gives what `each` makes of a tensor: of all of it, or of its rows along an axis, which are
    /// put together in a tensor of a shape and of the operation's type.
    ///
    /// # Errors
    /// As [`Self::begin`], and of `each`.
    pub(crate) fn gather(
        mut self,
        axis: i64,
        of: &Tensor,
        shape: &[i64],
        each: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if self.is_whole() {
            self.begin()?;
            return each(of);
        }
        let output = Tensor::f_empty(shape, (self.kind, self.device))?;
        self.write(axis, &output, of, each)?;
        Ok(output)
    }

    /// Writes what `each` makes of rows of a tensor along an axis onto the same rows of another
    /// one.
    ///
    /// # Errors
    /// As [`Self::gather`].
    pub(crate) fn write(
        self,
        axis: i64,
        output: &Tensor,
        of: &Tensor,
        each: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        self.write_each(axis, output, of, |onto, rows| Ok(onto.shallow_clone().f_copy_(&each(rows)?)?))
    }

    /// The same by what writes its result itself, onto the first of its tensors.
    ///
    /// # Errors
    /// As [`Self::gather`].
    pub(crate) fn write_each(
        mut self,
        axis: i64,
        output: &Tensor,
        of: &Tensor,
        each: impl Fn(&Tensor, &Tensor) -> Result<()>,
    ) -> Result<()> {
        while let Some(rows) = self.begin()? {
            each(&part(output, axis, &rows)?, &part(of, axis, &rows)?)?;
        }
        Ok(())
    }
}

/// Some rows of a tensor along an axis.
pub(crate) fn part(tensor: &Tensor, axis: i64, rows: &Range<i64>) -> Result<Tensor> {
    Ok(tensor.f_narrow(axis, rows.start, rows.end - rows.start)?)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cancel::{Scope, tests::after};

    /// Rates at which small operations take long.
    pub(crate) fn slow() -> Rates {
        let convolution = Rate { per_product: 2e-8, per_value: 0.0 };
        let of = OfKind { kind: Kind::Float, products: 1e8, attention: 1e8, convolution };
        Rates { device: Some(Device::Cpu), of: vec![of] }
    }

    fn pieces(rows: i64, seconds: f64) -> Pieces {
        Pieces::of(Device::Cpu, Kind::Float, rows, Operation::Product(seconds * UNMEASURED))
    }

    #[test]
    fn only_what_takes_long_is_divided_and_rests_join() {
        let all = |mut pieces: Pieces| {
            let is_whole = pieces.is_whole();
            let begun = std::iter::from_fn(|| pieces.begin().unwrap());
            let found: Vec<_> = begun.map(|rows| [rows.start, rows.end]).collect();
            assert_eq!(is_whole, found.len() < 2, "{found:?}");
            found
        };
        assert_eq!(all(pieces(100_000, 9.0)), [[0, 100_000]], "nobody can cancel it");
        let _scope = Scope::enter(after(usize::MAX).0, Rates::default());
        assert_eq!(all(pieces(100_000, 0.5)), [[0, 100_000]]);
        assert_eq!(all(pieces(700, 9.0)), [[0, 700]]);
        assert_eq!(all(pieces(4096, 0.6)), [[0, 768], [768, 1536], [1536, 2304], [2304, 3072], [3072, 4096]]);
        assert_eq!(all(pieces(2000, 99.0)), [[0, 768], [768, 2000]]);
        assert_eq!(all(pieces(10, 0.1).of_at_most(4)), [[0, 4], [4, 8], [8, 10]]);
        assert_eq!(all(pieces(65_536, 0.6).of_at_most(65_000)).len(), 16);
        assert!(all(pieces(0, 1.0)).is_empty());
    }

    #[test]
    fn no_piece_begins_after_the_cancellation() {
        let _scope = Scope::enter(after(2).0, Rates::default());
        let mut pieces = pieces(1 << 20, 500.0);
        assert_eq!([pieces.begin().unwrap(), pieces.begin().unwrap()], [Some(0..1024), Some(1024..2048)]);
        assert!(matches!(pieces.begin(), Err(crate::Error::Cancelled)));
    }
}
