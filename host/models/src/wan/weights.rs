//! The networks' weights by diffusers' names, from a file of any layout.

use tch::{Device, Kind, Tensor};

use super::{Config, EncoderConfig, config::known};
use crate::{
    Checkpoint, Error, Identity, Result,
    error::Shape,
    known::{Known, Needed},
    names::wan::Naming,
};

/// Tensors that were compared with what a network needs before the first is loaded.
#[derive(Debug)]
pub(super) struct Weights<'a> {
    known: Known<'a, Naming>,
    needed: Vec<Needed>,
}

impl<'a> Weights<'a> {
    /// The decoder's weights.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen or left over, by the file's own name.
    pub fn new(file: &'a Checkpoint, identity: &'a Identity, config: &Config) -> Result<Self> {
        let left = Config::left_over(file, identity);
        Error::refuse_left_over(file.path(), "decoder", &left)?;
        Self::checked(Self { known: known(file, identity)?, needed: config.needed() })
    }

    /// The encoder's weights.
    ///
    /// # Errors
    /// A tensor that is missing or misshapen, by the file's own name.
    pub fn of_encoder(file: &'a Checkpoint, identity: &'a Identity, config: &EncoderConfig) -> Result<Self> {
        Self::checked(Self { known: known(file, identity)?, needed: config.needed() })
    }

    /// All shapes before any weight is copied.
    fn checked(self) -> Result<Self> {
        for needed in &self.needed {
            self.known.locate(needed)?;
        }
        Ok(self)
    }

    /// Whether the network has a tensor of diffusers' name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&Needed> {
        // WAN 2.2's upsampler is the only one of its block too; diffusers numbers 2.1's alone.
        let name = name.replace(".upsampler.", ".upsamplers.0.");
        self.needed.iter().find(|needed| needed.name == name)
    }

    /// Loads a tensor by diffusers' name as `kind` on `device`, in a shape of as many elements as it has.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Shape`] and [`Error::Stored`] with the file's own name, libtorch's failures.
    pub fn load(&self, name: &str, shape: &[usize], kind: Kind, device: Device) -> Result<Tensor> {
        let needed = self.find(name).ok_or_else(|| self.known.missing(name, shape))?;
        let (name, found) = self.known.locate(needed)?;
        if found.iter().product::<usize>() != shape.iter().product::<usize>() {
            return Err(Error::Shape {
                path: self.known.file.path().to_owned(),
                name: name.to_owned(),
                found: Shape(found.to_vec()),
                expected: Shape(shape.to_vec()),
            });
        }
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        Ok(self.known.file.load(name, found, kind, device)?.f_reshape(extents)?)
    }
}
