//! Layout of what fp8 programs add to a state.

use super::{
    Fp8Param, Fp8Slot, Fp8State, Fp8Weight, Param, SCALES_ROW, SlotId, SlotName, Spec, State, StateBuilder,
};
use crate::device::DType;

impl State {
    /// Returns the index among [`Fp8State::weights`] of the parameter that ops read through a slot; `None` if
    /// products do not read it as 8-bit floats.
    pub fn fp8_weight_read_at(&self, slot: SlotId) -> Option<usize> {
        self.fp8.as_ref()?.weights.iter().position(|weight| self.params[weight.param.index].read == slot)
    }
}

impl StateBuilder {
    /// Lays out these parameters, in order, also as 8-bit floats: as the two matrices that products read, in
    /// the memory of their compute copy, which is twice as large, or in a buffer of their own if the copy is
    /// kept. Then adds the tables of sites, and for several ranks the maxima of all of them.
    pub fn lay_out_fp8(&mut self, params: &[Fp8Param], gradients: DType, ranks: usize) {
        let mut weights = Vec::new();
        for &param in params {
            let Param { read, spec, name, .. } = self.state.params[param.index].clone();
            let [rows, columns] = [spec.rows(), spec.width()];
            let (buffer, start) = if param.keeps_copy {
                (self.buffer(format!("{name}.fp8"), 2 * rows * columns), 0)
            } else {
                let copy = self.state.get(read);
                (copy.buffer, copy.offset)
            };
            let mut add = |transposed: bool, shape: [usize; 2]| {
                let offset = start + if transposed { rows * columns } else { 0 };
                let slot = SlotName::Fp8Weight { param: name.clone(), transposed };
                self.add_slot(buffer, slot, Spec::new(shape, DType::E4m3), offset)
            };
            let (plain, transposed) = (add(false, [rows, columns]), add(true, [columns, rows]));
            weights.push(Fp8Weight { param, rows: plain, transposed });
        }
        let fp8 = Fp8State { weights, gradients };
        let sites = fp8.sites();
        self.state.fp8 = Some(fp8);
        let mut tables = vec![
            (Fp8Slot::Scales, Spec::new([sites, SCALES_ROW], DType::F32)),
            (Fp8Slot::Maxima, Spec::new([sites], DType::F32)),
            (Fp8Slot::Counts, Spec::new([sites, 2], DType::F64)),
        ];
        tables.extend((ranks > 1).then(|| (Fp8Slot::AllMaxima, Spec::new([ranks * sites], DType::F32))));
        self.lay_out(tables);
    }
}
