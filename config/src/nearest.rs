//! "Did you mean": the valid name closest to one that is not.

/// The candidate nearest to `name`, spelling and case considered; `None` only without candidates.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let folded = fold(name);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &fold(candidate)), candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Case and the choice of dash or underscore are the commonest slips, so they count nothing.
fn fold(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_hand_find_their_word() {
        let names = ["max_model_len", "max_queue", "host", "port"];
        for (typed, meant) in [
            ("max-model-len", "max_model_len"),
            ("MAX_QUEUE", "max_queue"),
            ("prot", "port"),
            ("hosts", "host"),
            ("max_model_length", "max_model_len"),
        ] {
            assert_eq!(nearest(typed, names), Some(meant));
        }
    }

    #[test]
    fn nothing_is_nearest_to_nothing() {
        assert_eq!(nearest("x", []), None);
    }
}
