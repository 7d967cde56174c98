use super::*;
use half::bf16;

/// Returns numbers with many significant bits, the same on every call.
fn numbers(count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Computes `c (+)= a·b` with one chain of multiply-adds per element, as the module promises.
fn chain(
    (m, n, k): (usize, usize, usize),
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
    c: &mut [f32],
    add: bool,
) {
    for (i, c) in c.iter_mut().enumerate().take(m * n) {
        let start = if add { *c } else { 0.0 };
        *c = (0..k).fold(start, |sum, t| a(i / n, t).mul_add(b(t, i % n), sum));
    }
}

/// Sizes around the limits of tiles, panels, vectors and blocks of terms.
const SIZES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 200, 300),
    (5, 15, 16),
    (6, 16, 257),
    (7, 17, 129),
    (13, 63, 64),
    (97, 65, 31),
    (49, 130, 300),
    (200, 48, 513),
    (3, 1000, 60),
    (257, 129, 128),
    (64, 64, 0),
];

#[test]
fn every_layout_gives_the_bits_of_one_chain() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        for (m, n, k) in SIZES {
            let (a, b) = (numbers(m * k), numbers(k * n));
            for (a_transposed, b_transposed, add) in
                [(false, false, false), (false, true, true), (true, false, true), (true, true, false)]
            {
                let left = Matrix::rows(View::from_slice(&a), if a_transposed { m } else { k });
                let right = Matrix::rows(View::from_slice(&b), if b_transposed { k } else { n });
                let (left, right) = (
                    if a_transposed { left.t() } else { left },
                    if b_transposed { right.t() } else { right },
                );
                let mut c = numbers(m * n);
                let mut expected = c.clone();
                let of = |m: Matrix<View<'_, f32>>, r, c| m.view.get(m.at(r, c).start);
                chain((m, n, k), |r, c| of(left, r, c), |r, c| of(right, r, c), &mut expected, add);
                product(&pool, (m, n, k), left, right, Matrix::rows(ViewMut::from_slice(&mut c), n), add);
                assert_eq!(c, expected, "{m} x {n} x {k} {a_transposed} {b_transposed} {add} {threads}");
            }
        }
    }
}

#[test]
fn nothing_beside_the_result_is_written() {
    let pool = Pool::new(2).unwrap();
    for (m, n, k) in [(7, 17, 129), (13, 5, 3), (49, 130, 70), (97, 250, 301)] {
        let width = n + 9;
        let mut c = vec![7f32; (m + 2) * width];
        let (a, b) = (numbers(m * k), numbers(k * n));
        let to = Matrix::rows(ViewMut::from_slice(&mut c), width).at(1, 4);
        let (a, b) = (Matrix::rows(View::from_slice(&a), k), Matrix::rows(View::from_slice(&b), n));
        product(&pool, (m, n, k), a, b, to, false);
        for (i, c) in c.iter().enumerate() {
            let (row, column) = (i / width, i % width);
            let inside = (1..=m).contains(&row) && (4..4 + n).contains(&column);
            assert_eq!(*c == 7.0, !inside, "{m} x {n} x {k}: {row}, {column}");
        }
    }
}

#[test]
fn bf16_is_widened_and_rounded_once() {
    let pool = Pool::new(2).unwrap();
    for (m, n, k) in SIZES {
        let narrow = |x: Vec<f32>| x.into_iter().map(bf16::from_f32).collect::<Vec<bf16>>();
        let (a, b, mut c) = (narrow(numbers(m * k)), narrow(numbers(k * n)), narrow(numbers(m * n)));
        for (a_transposed, add) in [(false, false), (true, true)] {
            let left = Matrix::rows(View::from_slice(&a), if a_transposed { m } else { k });
            let left = if a_transposed { left.t() } else { left };
            let right = Matrix::rows(View::from_slice(&b), n);
            let mut wide = vec![0.0; m * n];
            let at = |t: usize, r: usize| if a_transposed { a[t * m + r] } else { a[r * k + t] };
            chain((m, n, k), |r, t| at(t, r).to_f32(), |t, c| b[t * n + c].to_f32(), &mut wide, false);
            let expected: Vec<bf16> = wide
                .iter()
                .zip(&c)
                .map(|(sum, c)| bf16::from_f32(if add { c.to_f32() + sum } else { *sum }))
                .collect();
            let to = Matrix::rows(ViewMut::from_slice(&mut c), n);
            product(&pool, (m, n, k), left, right, to, add);
            assert_eq!(c, expected, "{m} x {n} x {k} {add}");
        }
    }
}

#[test]
fn a_product_is_combined_with_another_matrix() {
    let pool = Pool::new(2).unwrap();
    for (m, n, k) in SIZES {
        let (a, b, addend) = (numbers(m * k), numbers(k * n), numbers(m * n));
        let mut sums = vec![0.0; m * n];
        chain((m, n, k), |r, t| a[r * k + t], |t, c| b[t * n + c], &mut sums, false);
        let expected: Vec<f32> =
            sums.iter().zip(&addend).map(|(sum, other)| 1.5f32.mul_add(*sum, -0.75 * other)).collect();
        let rows = |data, width| Matrix::rows(View::from_slice(data), width);
        let mut c = vec![f32::NAN; m * n];
        let to = Matrix::rows(ViewMut::from_slice(&mut c), n);
        product_with_addend(&pool, (m, n, k), 1.5, (rows(&a, k), rows(&b, n)), (-0.75, rows(&addend, n)), to);
        assert_eq!(c, expected, "{m} x {n} x {k}");
    }
}

#[test]
fn a_combined_bf16_product_is_rounded_once() {
    let pool = Pool::new(2).unwrap();
    for (m, n, k) in SIZES {
        let narrow = |x: Vec<f32>| x.into_iter().map(bf16::from_f32).collect::<Vec<bf16>>();
        let (a, b, addend) = (narrow(numbers(m * k)), narrow(numbers(k * n)), narrow(numbers(m * n)));
        let mut sums = vec![0.0; m * n];
        chain((m, n, k), |r, t| a[r * k + t].to_f32(), |t, c| b[t * n + c].to_f32(), &mut sums, false);
        let combined = |sum: &f32, other: &bf16| 2.0315f32.mul_add(*sum, -4.775 * other.to_f32());
        let expected: Vec<bf16> =
            sums.iter().zip(&addend).map(|(s, o)| bf16::from_f32(combined(s, o))).collect();
        let rows = |data, width| Matrix::rows(View::from_slice(data), width);
        let mut c = vec![bf16::NAN; m * n];
        let to = Matrix::rows(ViewMut::from_slice(&mut c), n);
        product_with_addend(
            &pool,
            (m, n, k),
            2.0315,
            (rows(&a, k), rows(&b, n)),
            (-4.775, rows(&addend, n)),
            to,
        );
        assert_eq!(c, expected, "{m} x {n} x {k}");
    }
}

/// Covers wide outputs and long sums, for which only part of the operand is packed at a time.
#[test]
fn an_operand_is_packed_in_parts() {
    let pool = Pool::new(2).unwrap();
    let (m, n, k) = (2, 200, MAX_PACKED / 64 + 5);
    let (a, b) = (vec![1f32; m * k], numbers(n));
    // All rows of the right operand are the same.
    let right = Matrix { view: View::from_slice(&b), start: 0, row_stride: 0, column_stride: 1 };
    let mut c = vec![0f32; m * n];
    let to = Matrix::rows(ViewMut::from_slice(&mut c), n);
    product(&pool, (m, n, k), Matrix::rows(View::from_slice(&a), k), right, to, false);
    for (i, c) in c.iter().enumerate() {
        let expected = (0..k).fold(0f32, |sum, _| b[i % n].mul_add(1.0, sum));
        assert_eq!(*c, expected, "{i}");
    }
}

#[test]
fn parts_of_a_packed_operand() {
    let (m, n, k) = (9, 150, 200);
    let (a, b) = (numbers(m * k), numbers(k * n));
    for arch in instruction_sets() {
        let mut memory = vec![f32::NAN; packed_len(k, n)];
        let packed = Packed::new(arch, Matrix::rows(View::from_slice(&b), n), (k, n), &mut memory);
        for (terms, columns) in [(0..k, 0..n), (3..180, 16..150), (7..8, 48..49), (50..50, 32..100)] {
            let width = columns.len();
            let mut c = numbers(m * width);
            let mut expected = c.clone();
            let a = Matrix::rows(View::from_slice(&a), k).at(0, terms.start);
            chain(
                (m, width, terms.len()),
                |r, t| a.view.get(a.at(r, t).start),
                |t, c| b[(terms.start + t) * n + columns.start + c],
                &mut expected,
                terms.len() > 1,
            );
            let to = Matrix::rows(ViewMut::from_slice(&mut c), width);
            packed.multiply(m, a, terms.clone(), columns.clone(), to, terms.len() > 1);
            assert_eq!(c, expected, "{terms:?} {columns:?} {arch:?}");
        }
    }
}

/// Returns every instruction set of this machine that has its own code.
fn instruction_sets() -> Vec<pulp::Arch> {
    let sets = vec![pulp::Arch::Scalar, pulp::Arch::new()];
    #[cfg(target_arch = "x86_64")]
    let sets = [sets, pulp::x86::V3::try_new().map(pulp::Arch::V3).into_iter().collect()].concat();
    sets
}

#[test]
fn tiles_cover_an_output() {
    for m in [1, 5, 47, 48, 128, 384, 2048, 16384, 100_000] {
        for n in [1, 32, 64, 200, 3072] {
            let (rows, columns) = tile(m, n, 128);
            assert!(rows > 0 && columns > 0);
            assert!(is_small((m, n, 128)) || columns.is_multiple_of(PANEL));
            assert!(rows <= 32 * ROWS || is_small((m, n, 128)));
        }
    }
}
