//! Refusing requests that cannot be served, at once and with the numbers.

use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};

use crate::api::{GenerateRequest, MAX_ANSWERS, MAX_TOP_LOGPROBS, RequestError, ScoreRequest};

/// What requests are measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Positions of a sequence.
    pub max_model_len: usize,
    /// Prompt rows of a step.
    pub max_rows: usize,
    /// KV blocks of all sequences.
    pub kv_blocks: usize,
}

/// Checks a request to generate; returns the most tokens each of its answers may have.
pub(crate) fn generate(request: &GenerateRequest, bounds: &Bounds) -> Result<usize, RequestError> {
    let context = bounds.max_model_len;
    check_ids("the prompt", &request.prompt, bounds)?;
    let prompt = request.prompt.len();
    let nothing = request.max_tokens == Some(0);
    if nothing && request.prompt_logprobs.is_none() {
        return invalid("max_tokens is 0; it must be at least 1".to_string());
    }
    if prompt + usize::from(!nothing) > context {
        return invalid(format!(
            "the prompt has {prompt} tokens; the context of {context} (--max-model-len) has room for \
             {} and one of an answer",
            context - 1
        ));
    }
    request.sampling.validate().map_err(|error| RequestError::Invalid(error.to_string()))?;
    check_numbers(request)?;
    request
        .sampling
        .validate_ids(bounds.vocab_size)
        .map_err(|error| RequestError::Invalid(error.to_string()))?;
    let unknown = |id: &&u32| **id as usize >= bounds.vocab_size;
    if let Some(id) = request.stop_token_ids.iter().find(unknown) {
        let last = bounds.vocab_size - 1;
        return invalid(format!("stop_token_ids names token {id}; token ids go from 0 to {last}"));
    }
    let room = context - prompt;
    let most = match request.max_tokens {
        None => room,
        Some(most) if most > room => {
            return invalid(format!(
                "max_tokens is {most}; the context of {context} (--max-model-len) leaves {room} after \
                 a prompt of {prompt} tokens"
            ));
        }
        Some(most) => most,
    };
    if request.sampling.min_tokens > most {
        let least = request.sampling.min_tokens;
        return invalid(format!("min_tokens is {least}; at most {most} tokens are generated"));
    }
    check_blocks(prompt + most, bounds)?;
    Ok(most)
}

fn check_numbers(request: &GenerateRequest) -> Result<(), RequestError> {
    let GenerateRequest { n, logprobs, prompt_logprobs, timeout, .. } = request;
    if !(1..=MAX_ANSWERS).contains(n) {
        return invalid(format!("n is {n}; it must be 1 to {MAX_ANSWERS}"));
    }
    for (what, top) in [("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)] {
        if let Some(top) = top.filter(|top| *top > MAX_TOP_LOGPROBS) {
            return invalid(format!("{what} is {top}; it must be at most {MAX_TOP_LOGPROBS}"));
        }
    }
    match timeout {
        Some(timeout) if timeout.is_zero() => invalid("the timeout is 0".to_string()),
        _ => Ok(()),
    }
}

/// A sequence that can outgrow the whole cache would get stuck there, and everybody behind it.
fn check_blocks(tokens: usize, bounds: &Bounds) -> Result<(), RequestError> {
    let (needed, all) = (tokens.div_ceil(KV_BLOCK_TOKENS), bounds.kv_blocks);
    if needed <= all {
        return Ok(());
    }
    invalid(format!(
        "prompt and answer may take {tokens} tokens, {needed} KV blocks; there are {all}, room for {} \
         tokens (--kv-cache-bytes)",
        all * KV_BLOCK_TOKENS
    ))
}

/// Checks a request to score; returns the rows it may have in a step.
pub(crate) fn score(request: &ScoreRequest, bounds: &Bounds) -> Result<usize, RequestError> {
    check_ids("the text", &request.ids, bounds)?;
    check_blocks(request.ids.len(), bounds)?;
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

    const BOUNDS: Bounds =
        Bounds { vocab_size: 640, max_model_len: 100, max_rows: 128, kv_blocks: 2 };

    fn generate_with(prompt: Vec<u32>, max_tokens: Option<usize>) -> Result<usize, String> {
        let request = GenerateRequest { max_tokens, ..GenerateRequest::greedy("a", prompt) };
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
            sampling: SamplingParams { top_p: 0.0, ..SamplingParams::default() },
            ..GenerateRequest::greedy("a", vec![1])
        };
        let message = generate(&request, &BOUNDS).unwrap_err().to_string();
        assert_eq!(message, "top_p is 0; it must be above 0, at most 1");
    }

    #[test]
    fn what_is_asked_of_the_answers_has_limits() {
        let with = |change: &dyn Fn(&mut GenerateRequest)| {
            let mut request = GenerateRequest::greedy("a", vec![1; 60]);
            change(&mut request);
            generate(&request, &BOUNDS).map_err(|error| error.to_string())
        };
        assert_eq!(with(&|r| r.n = 16), Ok(40));
        assert_eq!(with(&|r| r.n = 0), Err("n is 0; it must be 1 to 16".into()));
        assert_eq!(with(&|r| r.n = 17), Err("n is 17; it must be 1 to 16".into()));
        assert_eq!(
            with(&|r| r.logprobs = Some(21)),
            Err("logprobs is 21; it must be at most 20".into())
        );
        assert_eq!(
            with(&|r| r.stop_token_ids = vec![640]),
            Err("stop_token_ids names token 640; token ids go from 0 to 639".into())
        );
        assert_eq!(
            with(&|r| r.sampling.logit_bias = [(700, 1.0)].into()),
            Err("a token of logit_bias is 700; it must be below 640".into())
        );
        assert_eq!(
            with(&|r| r.sampling.min_tokens = 41),
            Err("min_tokens is 41; at most 40 tokens are generated".into())
        );
    }

    #[test]
    fn no_token_is_generated_only_where_the_prompt_is_rated() {
        let rated = |prompt| GenerateRequest {
            max_tokens: Some(0),
            prompt_logprobs: Some(0),
            ..GenerateRequest::greedy("a", vec![1; prompt])
        };
        assert_eq!(generate(&rated(100), &BOUNDS), Ok(0));
        assert!(generate(&rated(101), &BOUNDS).is_err());
    }

    /// M4: what can outgrow the cache is refused before it blocks everybody.
    #[test]
    fn a_request_larger_than_the_cache_is_refused_with_the_numbers() {
        let bounds = Bounds { kv_blocks: 1, ..BOUNDS };
        let fits =
            GenerateRequest { max_tokens: Some(4), ..GenerateRequest::greedy("a", vec![1; 60]) };
        assert_eq!(generate(&fits, &bounds), Ok(4));
        let large = GenerateRequest { max_tokens: Some(5), ..fits };
        assert_eq!(
            generate(&large, &bounds).unwrap_err().to_string(),
            "prompt and answer may take 65 tokens, 2 KV blocks; there are 1, room for 64 tokens \
             (--kv-cache-bytes)"
        );
    }
}
