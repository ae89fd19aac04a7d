//! The factors of changes, on a device.

use tch::{Device, Kind, Tensor};
use tilewright_nn::MatrixChange;

use super::{Change, Changes};
use crate::{Result, lora::Lora};

impl Change {
    /// The last factor, whose rows are those of the weight, in the network's order.
    fn up(&self, lora: &Lora) -> Result<Tensor> {
        let up = lora.matrix(&self.up)?;
        let up = tilewright_torch::scalar::multiply(&up, self.factor)?;
        if !self.swapped {
            return Ok(up);
        }
        let half = self.rows.len() as i64 / 2;
        Ok(Tensor::f_cat(&[up.f_narrow(0, half, half)?, up.f_narrow(0, 0, half)?], 0)?)
    }
}

impl Changes {
    /// The factors of a matrix's changes, in the type of products.
    pub fn of_matrix(&self, name: &str, kind: Kind, device: Device) -> Result<Vec<MatrixChange>> {
        let mut all = Vec::new();
        for change in self.by_name.get(name).into_iter().flatten() {
            let lora = &self.loras[change.lora];
            let on_device = |tensor: Tensor| tensor.f_to_kind(kind)?.f_to_device(device);
            let mut factors = Vec::new();
            if let Some(down) = &change.down {
                factors.push(on_device(lora.matrix(down)?)?);
            }
            factors.push(on_device(change.up(lora)?)?);
            all.push(MatrixChange { first: change.rows.start as i64, factors });
        }
        Ok(all)
    }

    /// Adds the changes of a vector.
    pub fn add_to_vector(&self, name: &str, vector: &Tensor) -> Result<()> {
        for change in self.by_name.get(name).into_iter().flatten() {
            let lora = &self.loras[change.lora];
            let change_of = change.up(lora)?.f_reshape([-1])?.f_to_device(vector.device())?;
            let part = vector.f_reshape([-1])?.f_narrow(0, change.rows.start as i64, change.rows.len() as i64)?;
            let _ = part.shallow_clone().f_add_(&change_of)?;
        }
        Ok(())
    }
}
