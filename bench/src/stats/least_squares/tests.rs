use nalgebra::SVD;
use proptest::prelude::*;

use super::*;

fn line(points: &[(f64, f64)], weighting: Weighting) -> Result<Fit, FitError> {
    let rows: Vec<Vec<f64>> = points.iter().map(|(x, _)| vec![1.0, *x]).collect();
    let measured: Vec<f64> = points.iter().map(|(_, y)| *y).collect();
    least_squares(&["start", "slope"], &rows, &measured, weighting)
}

/// Anscombe's first set, whose fit is in every textbook.
const ANSCOMBE: [(f64, f64); 11] = [
    (10.0, 8.04),
    (8.0, 6.95),
    (13.0, 7.58),
    (9.0, 8.81),
    (11.0, 8.33),
    (14.0, 9.96),
    (6.0, 7.24),
    (4.0, 4.26),
    (12.0, 10.84),
    (7.0, 4.82),
    (5.0, 5.68),
];

#[test]
fn anscombes_line_has_its_published_numbers() {
    let fit = line(&ANSCOMBE, Weighting::Ordinary).unwrap();
    let [start, slope] = &fit.coefficients[..] else { panic!("two parameters") };
    assert!((start.value - 3.0001).abs() < 1e-4 && (slope.value - 0.5001).abs() < 1e-4);
    assert!((start.standard_error.unwrap() - 1.1247).abs() < 1e-4);
    assert!((slope.standard_error.unwrap() - 0.1179).abs() < 1e-4);
    assert!((fit.r_squared.unwrap() - 0.6665).abs() < 1e-4);
    assert!((fit.scatter.unwrap() - 1.2366).abs() < 1e-4);
    let interval = slope.interval.unwrap();
    assert!((interval.low - 0.2334).abs() < 1e-3 && (interval.high - 0.7668).abs() < 1e-3);
    assert_eq!(fit.degrees_of_freedom, 9);
}

#[test]
fn impossible_fits_are_refused_by_name() {
    let error = line(&[(1.0, 1.0)], Weighting::Ordinary).unwrap_err();
    assert_eq!(error, FitError::TooFewPoints { points: 1, parameters: 2 });
    let error = line(&[(2.0, 1.0), (2.0, 3.0), (2.0, 2.0)], Weighting::Ordinary).unwrap_err();
    assert_eq!(error, FitError::Collinear { name: "slope".to_owned() });
    let error = line(&[(1.0, 1.0), (2.0, 0.0), (3.0, 2.0)], Weighting::Relative).unwrap_err();
    assert!(matches!(error, FitError::BadValue { point: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("point 2 "), "{error}");
    let error = line(&[(1.0, f64::NAN), (2.0, 0.0)], Weighting::Ordinary).unwrap_err();
    assert!(matches!(error, FitError::BadValue { point: 0, .. }), "{error}");
    // A few small values far below a steep line: the first fit is negative there.
    let steep = [(0.0, 0.01), (1.0, 0.01), (1.0, 100.0), (2.0, 400.0), (-0.5, 0.01)];
    if let Err(error) = line(&steep, Weighting::Relative) {
        assert!(matches!(error, FitError::NotPositive { .. }), "{error}");
    }
}

#[test]
fn a_fit_without_a_point_to_spare_has_no_errors() {
    let fit = line(&[(1.0, 3.0), (2.0, 5.0)], Weighting::Ordinary).unwrap();
    assert!((fit.coefficients[1].value - 2.0).abs() < 1e-12);
    assert_eq!((fit.scatter, &fit.covariance), (None, &None));
    assert!(fit.coefficients.iter().all(|found| found.standard_error.is_none()));
    assert!(fit.influence.iter().all(|influence| influence.moves.is_none()));
    assert_eq!(fit.largest_move(0), None);
}

/// Points about a line with positive values.
fn scattered() -> impl Strategy<Value = Vec<(f64, f64)>> {
    let point = (0u32..5000, 0.8f64..1.2);
    (proptest::collection::vec(point, 4..20), 1.0f64..300.0, 0.01f64..2.0).prop_map(
        |(points, start, slope)| {
            let spread = points.iter().enumerate();
            spread
                .map(|(at, (x, noise))| {
                    let x = f64::from(*x) + at as f64 * 0.5;
                    (x, (start + slope * x) * noise)
                })
                .collect()
        },
    )
}

proptest! {
    /// Two ways to the same answer: QR here, singular values in nalgebra.
    #[test]
    fn qr_agrees_with_singular_values(points in scattered()) {
        let fit = line(&points, Weighting::Ordinary).unwrap();
        let design = DMatrix::from_fn(points.len(), 2, |row, column| {
            if column == 0 { 1.0 } else { points[row].0 }
        });
        let right = DVector::from_fn(points.len(), |row, _| points[row].1);
        let other = SVD::new(design, true, true).solve(&right, 1e-14).unwrap();
        let size = fit.values().iter().fold(0.0f64, |size, value| size.max(value.abs()));
        for (found, expected) in fit.values().iter().zip(&other) {
            prop_assert!((found - expected).abs() <= 1e-7 * size, "{found} and {expected}");
        }
    }

    /// What the closed form says of leaving a point out is what leaving it out does.
    #[test]
    fn influence_is_what_leaving_a_point_out_does(points in scattered(), at in 0usize..4) {
        let with = line(&points, Weighting::Ordinary).unwrap();
        let mut rest = points.clone();
        rest.remove(at);
        let without = line(&rest, Weighting::Ordinary).unwrap();
        let moves = with.influence[at].moves.as_ref().unwrap();
        let size = with.values().iter().fold(1.0f64, |size, value| size.max(value.abs()));
        for ((moved, with), without) in moves.iter().zip(with.values()).zip(without.values()) {
            prop_assert!((moved - (with - without)).abs() <= 1e-6 * size, "{moved}");
        }
    }

    /// Points on a line are found, weighted or not, and nothing is left over.
    #[test]
    fn exact_points_are_found_exactly(start in 1.0f64..300.0, slope in 0.01f64..2.0) {
        let points: Vec<(f64, f64)> =
            [67.0, 421.0, 1242.0, 3703.0].iter().map(|x| (*x, start + slope * x)).collect();
        for weighting in [Weighting::Ordinary, Weighting::Relative] {
            let fit = line(&points, weighting).unwrap();
            prop_assert!((fit.values()[0] / start - 1.0).abs() < 1e-8);
            prop_assert!((fit.values()[1] / slope - 1.0).abs() < 1e-9);
            prop_assert!(fit.largest_residual() < 1e-8);
            prop_assert!(fit.r_squared.unwrap() > 1.0 - 1e-9);
        }
    }

    /// Measuring in other units changes the numbers' units and nothing else.
    #[test]
    fn a_relative_fit_does_not_depend_on_units(points in scattered(), unit in 0.001f64..1000.0) {
        let one = line(&points, Weighting::Relative);
        let scaled: Vec<(f64, f64)> = points.iter().map(|(x, y)| (*x, y * unit)).collect();
        let other = line(&scaled, Weighting::Relative);
        match (one, other) {
            (Ok(one), Ok(other)) => {
                for (a, b) in one.coefficients.iter().zip(&other.coefficients) {
                    let error = a.standard_error.unwrap();
                    prop_assert!((a.value * unit - b.value).abs() <= 1e-6 * error * unit + 1e-12);
                }
                prop_assert!((one.scatter.unwrap() - other.scatter.unwrap()).abs() < 1e-9);
            }
            (one, other) => prop_assert_eq!(one.is_err(), other.is_err()),
        }
    }
}
