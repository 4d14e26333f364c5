//! Sequences that go on from a copy of another's state.

use super::*;

/// D21: whatever the target slot held, a copy goes on with the bits of the whole sequence, and so does
/// the one it was copied from.
#[test]
fn a_copied_state_goes_on_with_the_bits_of_the_whole() {
    let layer = Layer::new(SMALL, 41);
    let device = device(2, Simd::detect());
    let cols = SMALL.projection();
    for (prompt, generated) in [(130, 0), (128, 0), (70, 3), (0, 2)] {
        let start = Sequence::new(&SMALL, prompt, generated, 42);
        let ends = [43, 44].map(|seed| Sequence::new(&SMALL, 0, 5, seed).projection);
        let mut state = CpuRecurrentState::new(SMALL, LAYERS, 3).unwrap();
        state.matrices.as_mut_slice().fill(f32::NAN);
        state.history.as_mut_slice().fill(f32::NAN);
        let steps = [vec![(0, start.rows())]];
        let begun = run(&device, &layer, &mut state, std::slice::from_ref(&start), &[1], &steps);
        state.fork(SlotId(1), SlotId(2)).unwrap();
        let mut found = [begun[0].clone(), begun[0].clone()];
        for row in 0..5 {
            let rows = ends.each_ref().map(|end| &end[row * cols..(row + 1) * cols]).concat();
            let segment = |slot, first_row| Segment {
                slot: SlotId(slot),
                first_row,
                rows: 1,
                position: start.rows() + row,
                recurrence: Recurrence::Stepwise,
                blocks: &[],
            };
            let projection = CpuTensor::from_slice(&rows, cols).unwrap();
            let mut out = CpuTensor::zeroed(2, layer.width()).unwrap();
            let segments = [segment(2, 0), segment(1, 1)];
            let op = layer.op(1);
            linear_attention(&device, &op, &projection, &segments, &mut state, &mut out).unwrap();
            for (i, found) in found.iter_mut().enumerate() {
                found.extend_from_slice(out.row(i));
            }
        }
        for (found, end) in found.iter().zip(&ends) {
            let whole = Sequence {
                generated: generated + 5,
                projection: [start.projection.clone(), end.clone()].concat(),
                ..start
            };
            let (expected, _) = alone(&device, &layer, &whole);
            assert!(bits(found) == bits(&expected), "{prompt} and {generated}");
        }
    }
}
