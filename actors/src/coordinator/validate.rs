//! Refusing requests that cannot be served, at once and with the numbers.

use pocket_device::RECURRENCE_CHUNK;

use crate::api::{GenerateRequest, RequestError, ScoreRequest};

/// What requests are measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Positions of a sequence.
    pub max_model_len: usize,
    /// Rows of a step.
    pub max_rows: usize,
}

/// Checks a request to generate; returns the most tokens it may generate.
pub(crate) fn generate(request: &GenerateRequest, bounds: &Bounds) -> Result<usize, RequestError> {
    let context = bounds.max_model_len;
    check_ids("the prompt", &request.prompt, bounds)?;
    let prompt = request.prompt.len();
    if prompt + 1 > context {
        return invalid(format!(
            "the prompt has {prompt} tokens; the context of {context} (--max-model-len) has room for \
             {} and one of an answer",
            context - 1
        ));
    }
    request.sampling.validate().map_err(|error| RequestError::Invalid(error.to_string()))?;
    let room = context - prompt;
    match request.max_tokens {
        None => Ok(room),
        Some(0) => invalid("max_tokens is 0; it must be at least 1".to_string()),
        Some(most) if most > room => invalid(format!(
            "max_tokens is {most}; the context of {context} (--max-model-len) leaves {room} after a \
             prompt of {prompt} tokens"
        )),
        Some(most) => Ok(most),
    }
}

/// Checks a request to score; returns the rows it may have in a step.
pub(crate) fn score(request: &ScoreRequest, bounds: &Bounds) -> Result<usize, RequestError> {
    check_ids("the text", &request.ids, bounds)?;
    let (tokens, context) = (request.ids.len(), bounds.max_model_len);
    if tokens > context {
        return invalid(format!(
            "the text has {tokens} tokens; the context has room for {context} (--max-model-len)"
        ));
    }
    let most = bounds.max_rows;
    match request.chunk {
        None => Ok(most),
        Some(chunk) if chunk == 0 || !chunk.is_multiple_of(RECURRENCE_CHUNK) => invalid(format!(
            "chunk is {chunk}; it must be a multiple of {RECURRENCE_CHUNK}, at least \
             {RECURRENCE_CHUNK}"
        )),
        Some(chunk) if chunk > most => invalid(format!(
            "chunk is {chunk}; a forward call has at most {most} tokens (--max-num-batched-tokens)"
        )),
        Some(chunk) => Ok(chunk),
    }
}

fn check_ids(what: &str, ids: &[u32], bounds: &Bounds) -> Result<(), RequestError> {
    if ids.is_empty() {
        return invalid(format!("{what} is empty; it must have at least one token"));
    }
    match ids.iter().position(|id| *id as usize >= bounds.vocab_size) {
        None => Ok(()),
        Some(position) => invalid(format!(
            "token id {} at position {position} is outside the vocabulary; ids go from 0 to {}",
            ids[position],
            bounds.vocab_size - 1
        )),
    }
}

fn invalid<T>(message: String) -> Result<T, RequestError> {
    Err(RequestError::Invalid(message))
}

#[cfg(test)]
mod tests {
    use pocket_model::sampler::SamplingParams;

    use super::*;

    const BOUNDS: Bounds = Bounds { vocab_size: 640, max_model_len: 100, max_rows: 128 };

    fn generate_with(prompt: Vec<u32>, max_tokens: Option<usize>) -> Result<usize, String> {
        let request = GenerateRequest {
            id: "a".to_string(),
            prompt,
            sampling: SamplingParams::greedy(),
            max_tokens,
            stop: vec![],
            ignore_eos: false,
        };
        generate(&request, &BOUNDS).map_err(|error| error.to_string())
    }

    fn score_with(tokens: usize, chunk: Option<usize>) -> Result<usize, String> {
        let ids = vec![1; tokens];
        let request = ScoreRequest { id: "a".to_string(), ids, chunk, last_logits: false };
        score(&request, &BOUNDS).map_err(|error| error.to_string())
    }

    #[test]
    fn what_fits_is_taken_up_to_the_last_position() {
        assert_eq!(generate_with(vec![0, 639], None), Ok(98));
        assert_eq!(generate_with(vec![1; 99], None), Ok(1));
        assert_eq!(generate_with(vec![1; 60], Some(40)), Ok(40));
        assert_eq!(score_with(100, None), Ok(128));
        assert_eq!(score_with(1, Some(64)), Ok(64));
        assert_eq!(score_with(1, Some(128)), Ok(128));
    }

    #[test]
    fn refusals_name_the_thing_and_the_numbers() {
        let table = [
            (vec![], None, "the prompt is empty; it must have at least one token"),
            (
                vec![1, 2, 640],
                None,
                "token id 640 at position 2 is outside the vocabulary; ids go from 0 to 639",
            ),
            (
                vec![1; 100],
                None,
                "the prompt has 100 tokens; the context of 100 (--max-model-len) has room for 99 and \
                 one of an answer",
            ),
            (
                vec![1; 60],
                Some(41),
                "max_tokens is 41; the context of 100 (--max-model-len) leaves 40 after a prompt of \
                 60 tokens",
            ),
            (vec![1], Some(0), "max_tokens is 0; it must be at least 1"),
        ];
        for (prompt, max_tokens, message) in table {
            assert_eq!(generate_with(prompt, max_tokens), Err(message.to_string()));
        }
        for (tokens, chunk, message) in [
            (0, None, "the text is empty; it must have at least one token"),
            (101, None, "the text has 101 tokens; the context has room for 100 (--max-model-len)"),
            (5, Some(0), "chunk is 0; it must be a multiple of 64, at least 64"),
            (5, Some(65), "chunk is 65; it must be a multiple of 64, at least 64"),
            (
                5,
                Some(192),
                "chunk is 192; a forward call has at most 128 tokens (--max-num-batched-tokens)",
            ),
        ] {
            assert_eq!(score_with(tokens, chunk), Err(message.to_string()));
        }
    }

    #[test]
    fn sampling_parameters_are_checked_too() {
        let request = GenerateRequest {
            id: "a".to_string(),
            prompt: vec![1],
            sampling: SamplingParams { top_p: 0.0, ..SamplingParams::default() },
            max_tokens: None,
            stop: vec![],
            ignore_eos: false,
        };
        let message = generate(&request, &BOUNDS).unwrap_err().to_string();
        assert_eq!(message, "top_p is 0; it must be above 0, at most 1");
    }
}
