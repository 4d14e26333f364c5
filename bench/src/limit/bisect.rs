//! The largest number that fits.

/// A boundary: the largest step that fits, and the smallest that does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Boundary<R> {
    /// The largest that fits; none if not even the first does.
    pub fits: Option<usize>,
    /// The smallest that was seen not to fit, and why; none if all fit.
    pub refused: Option<(usize, R)>,
}

/// Finds the largest of the steps from 1 to `most` that fits, where all below one that fits fit too: doubles
/// until one does not, then halves what is between. `fits` is asked about `2 x log2` of the answer and says
/// why not.
///
/// # Errors
///
/// Those of `fits`.
pub async fn bisect<R, E>(
    most: usize,
    mut fits: impl AsyncFnMut(usize) -> Result<Result<(), R>, E>,
) -> Result<Boundary<R>, E> {
    let mut below = None;
    let mut next = 1;
    let (mut above, mut why) = loop {
        if next > most {
            return Ok(Boundary { fits: below, refused: None });
        }
        match fits(next).await? {
            Ok(()) if next == most => return Ok(Boundary { fits: Some(most), refused: None }),
            Ok(()) => {
                below = Some(next);
                next = next.saturating_mul(2).min(most);
            }
            Err(reason) => break (next, reason),
        }
    };
    while above - below.unwrap_or(0) > 1 {
        let middle = below.unwrap_or(0) + (above - below.unwrap_or(0)) / 2;
        match fits(middle).await? {
            Ok(()) => below = Some(middle),
            Err(reason) => (above, why) = (middle, reason),
        }
    }
    Ok(Boundary { fits: below, refused: Some((above, why)) })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn found(most: usize, limit: usize) -> (Boundary<usize>, usize) {
        let mut asked = 0;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let boundary = runtime.block_on(bisect(most, async |step| {
            asked += 1;
            assert!((1..=most).contains(&step));
            Ok::<_, Infallible>(if step <= limit { Ok(()) } else { Err(step) })
        }));
        (boundary.unwrap(), asked)
    }

    proptest! {
        #[test]
        fn the_boundary_is_found(most in 1..5000_usize, limit in 0..6000_usize) {
            let (boundary, asked) = found(most, limit);
            let fits = limit.min(most);
            prop_assert_eq!(boundary.fits, (fits > 0).then_some(fits));
            prop_assert_eq!(boundary.refused, (limit < most).then_some((limit + 1, limit + 1)));
            let bits = (usize::BITS - most.leading_zeros()) as usize;
            prop_assert!(asked <= 2 * bits + 1, "{} for {}", asked, most);
        }
    }
}
