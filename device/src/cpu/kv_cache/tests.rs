use super::*;

const SHAPE: KvShape =
    KvShape { layers: 2, kv_heads: 3, head_dim: 20, blocks: 4, dtype: KvDtype::Float32 };

impl CpuKvCache {
    /// All numbers, as float32.
    pub fn numbers(&self) -> Vec<f32> {
        match &self.memory {
            KvMemory::Float32(memory) => memory.as_slice().to_vec(),
            KvMemory::Bf16(memory) => memory.as_slice().iter().map(|x| x.to_f32()).collect(),
        }
    }

    /// Writes `x` everywhere, or in one block of all layers.
    pub fn fill(&mut self, block: Option<BlockId>, x: f32) {
        let blocks = match block {
            Some(BlockId(block)) => block as usize..block as usize + 1,
            None => 0..self.shape.blocks,
        };
        for layer in 0..self.shape.layers {
            let (start, len) = (self.layer(layer).start, self.block_len());
            let range = start + blocks.start * len..start + blocks.end * len;
            match &mut self.memory {
                KvMemory::Float32(memory) => memory.as_mut_slice()[range].fill(x),
                KvMemory::Bf16(memory) => memory.as_mut_slice()[range].fill(bf16::from_f32(x)),
            }
        }
    }
}

#[test]
fn every_number_of_a_block_has_its_own_place() {
    let mut cache = CpuKvCache::new(SHAPE).unwrap();
    let (layout, layer) = (cache.layout(), cache.layer(1));
    let mut ranges: Vec<Range<usize>> = (0..4)
        .flat_map(|block| (0..3).map(move |head| layout.range(BlockId(block), head)))
        .collect();
    ranges.sort_by_key(|range| range.start);
    assert_eq!(ranges[0].start, 0);
    assert_eq!(ranges[11].end, layer.len());
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));

    let number = |token: usize, i: usize| (token * 100 + i) as f32;
    let keys: Vec<f32> =
        (0..64).flat_map(|token| (0..20).map(move |i| -number(token, i))).collect();
    let values: Vec<f32> = keys.iter().map(|x| -x).collect();
    let range = layout.range(BlockId(2), 1);
    let range = layer.start + range.start..layer.start + range.end;
    let KvMemory::Float32(memory) = &mut cache.memory else { unreachable!("as made") };
    let block = &mut memory.as_mut_slice()[range.clone()];
    // In two pieces, as a prompt and what follows it.
    layout.write(block, 50, &keys[50 * 20..], |i| &values[(50 + i) * 20..][..20]);
    layout.write(block, 0, &keys[..50 * 20], |i| &values[i * 20..][..20]);
    let numbers = cache.numbers();
    let (key_part, value_part) = numbers[range.clone()].split_at(layout.keys());
    for (token, i) in (0..64).flat_map(|token| (0..20).map(move |i| (token, i))) {
        let key = key_part[layout.key_strip(token / 16)][i * 16 + token % 16];
        let value = value_part[layout.value_strip(i / 16)][token * 16 + i % 16];
        assert_eq!((key, value), (-number(token, i), number(token, i)));
    }
    let outside = [&numbers[..range.start], &numbers[range.end..]];
    assert!(outside.concat().iter().all(|&x| x == 0.0));
}

#[test]
fn bf16_is_rounded_to_the_nearest_and_ties_to_even() {
    // A bf16 has seven bits after the point: 1 + 1/128 is one, 1 + 1/256 and 1 + 3/256 are ties.
    let parts = |n: u32| 1.0 + n as f32 / 512.0;
    for (x, rounded) in [(0, 0), (2, 0), (6, 8), (3, 4)].map(|(x, near)| (parts(x), parts(near))) {
        let mut block = [bf16::ZERO; 2 * STRIP * KV_BLOCK_TOKENS];
        let layout = KvLayout::new(KvShape { kv_heads: 1, head_dim: 1, ..SHAPE });
        layout.write(&mut block, 5, &[x], |_| std::slice::from_ref(&x));
        let found: Vec<f32> = block.iter().map(|x| x.to_f32()).filter(|&x| x != 0.0).collect();
        assert_eq!(found, [rounded, rounded]);
    }
}

#[test]
fn a_copied_block_is_the_same_in_every_layer_and_head_and_nothing_else_changes() {
    for dtype in [KvDtype::Float32, KvDtype::Bf16] {
        let mut cache = CpuKvCache::new(KvShape { dtype, ..SHAPE }).unwrap();
        for block in 0..4 {
            cache.fill(Some(BlockId(block)), block as f32 + 1.0);
        }
        cache.copy_block(BlockId(3), BlockId(1)).unwrap();
        let len = cache.block_len();
        let expected = [1.0, 4.0, 3.0, 4.0].map(|x| vec![x; len]).concat();
        assert_eq!(cache.numbers(), [expected.clone(), expected].concat());
        for (from, to) in [(4, 0), (0, 4)] {
            let error = cache.copy_block(BlockId(from), BlockId(to)).unwrap_err();
            assert!(error.to_string().contains("block 4 of 4"), "{error}");
        }
    }
}

#[test]
fn impossible_sizes_are_refused_by_name() {
    for shape in [
        KvShape { layers: 1, kv_heads: 1, head_dim: 256, blocks: usize::MAX, ..SHAPE },
        KvShape { layers: 1 << 20, kv_heads: 1 << 20, head_dim: 1 << 20, blocks: 1 << 20, ..SHAPE },
        KvShape { layers: 1, kv_heads: 1, head_dim: usize::MAX, blocks: 1, ..SHAPE },
        KvShape { layers: 16, kv_heads: 4, head_dim: 256, blocks: 1 << 28, ..SHAPE },
    ] {
        let error = CpuKvCache::new(shape).err().unwrap();
        assert!(
            matches!(&error, DeviceError::OutOfMemory { what, .. } if what == "the KV cache"),
            "{error}"
        );
    }
}

#[test]
fn a_cache_takes_what_its_shape_says_for_heads_of_whole_strips() {
    for dtype in [KvDtype::Float32, KvDtype::Bf16] {
        let shape = KvShape { layers: 3, kv_heads: 2, head_dim: 64, blocks: 5, dtype };
        let cache = CpuKvCache::new(shape).unwrap();
        assert_eq!((cache.numbers().len() * dtype.size()) as u64, shape.bytes());
    }
}
