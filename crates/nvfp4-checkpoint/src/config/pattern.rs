//! How names are matched: Python's `re.match` and `fnmatch`, and fused modules by their parts.

use regex::Regex;

/// Parts of the modules that inference engines fuse, by the last component of the name: vLLM's
/// `packed_modules_mapping` for the common models.
pub const FUSED_MODULES: &[(&str, &[&str])] =
    &[("qkv_proj", &["q_proj", "k_proj", "v_proj"]), ("gate_up_proj", &["gate_proj", "up_proj"])];

/// A map from the last component of fused modules' names to those of their parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FusedModules(Vec<(String, Vec<String>)>);

impl Default for FusedModules {
    fn default() -> Self {
        Self::new(FUSED_MODULES.iter().map(|(fused, parts)| (*fused, parts.iter().copied())))
    }
}

impl FusedModules {
    /// From (fused name, names of the parts in order).
    pub fn new<F: Into<String>, P: Into<String>>(
        map: impl IntoIterator<Item = (F, impl IntoIterator<Item = P>)>,
    ) -> Self {
        Self(map.into_iter().map(|(f, parts)| (f.into(), parts.into_iter().map(Into::into).collect())).collect())
    }

    /// Full names of the parts of a fused module, or `None` if the name is not a fused one.
    pub fn parts(&self, name: &str) -> Option<Vec<String>> {
        let (parent, last) = name.rsplit_once('.').map_or(("", name), |(p, l)| (p, l));
        let (_, parts) = self.0.iter().find(|(fused, _)| fused == last)?;
        let dot = if parent.is_empty() { "" } else { "." };
        Some(parts.iter().map(|part| format!("{parent}{dot}{part}")).collect())
    }
}

/// A Python regular expression used with `re.match`: anchored at the start only.
pub fn python_match(expression: &str) -> Result<Regex, String> {
    Regex::new(&format!(r"\A(?:{expression})")).map_err(|e| {
        let reason = e.to_string().lines().last().unwrap_or_default().trim().to_string();
        format!("the regular expression `{expression}` cannot be used: {reason}")
    })
}

/// A pattern of Python's `fnmatch`, case-sensitive: `*`, `?`, `[…]` and `[!…]` over the whole name. Taken apart once, so
/// that it can be held against every module of a large model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// `*`
    Any,
    /// `?`
    One,
    Char(char),
    /// `[…]`: ranges, and whether it is those outside that match.
    Set(Vec<(char, char)>, bool),
}

impl Glob {
    /// Any text is a pattern.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut tokens = Vec::with_capacity(chars.len());
        let mut rest = chars.as_slice();
        while let [first, after @ ..] = rest {
            rest = after;
            tokens.push(match first {
                '*' => Token::Any,
                '?' => Token::One,
                '[' => match set(after) {
                    Some((token, after)) => {
                        rest = after;
                        token
                    }
                    None => Token::Char('['),
                },
                other => Token::Char(*other),
            });
        }
        Self { text: text.into(), tokens }
    }

    /// The text in the file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern covers the whole of the name.
    pub fn matches(&self, name: &str) -> bool {
        // A later `*` can take up all that an earlier one could have, so only the last one is ever lengthened.
        let (mut tokens, mut name) = (self.tokens.as_slice(), name);
        let mut last_star: Option<(&[Token], &str)> = None;
        loop {
            let mut chars = name.chars();
            match (tokens.split_first(), chars.next()) {
                (Some((Token::Any, after)), _) => {
                    last_star = Some((after, name));
                    tokens = after;
                    continue;
                }
                (Some((token, after)), Some(c)) if token.covers(c) => {
                    (tokens, name) = (after, chars.as_str());
                    continue;
                }
                (None, None) => return true,
                _ => {}
            }
            // Another try, with one more character for the star.
            let Some((after, start)) = last_star else { return false };
            let mut chars = start.chars();
            if chars.next().is_none() {
                return false;
            }
            last_star = Some((after, chars.as_str()));
            (tokens, name) = (after, chars.as_str());
        }
    }
}

impl Token {
    fn covers(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Char(own) => *own == c,
            Self::Set(ranges, outside) => {
                ranges.iter().any(|&(first, last)| (first..=last).contains(&c)) != *outside
            }
        }
    }
}

/// A set of characters, from what follows its bracket; `None` if the bracket is never closed. With what is left.
fn set(after: &[char]) -> Option<(Token, &[char])> {
    let (outside, members) = match after {
        ['!', members @ ..] => (true, members),
        members => (false, members),
    };
    // A `]` in the first place is a member of the set.
    let end = members.iter().skip(1).position(|&c| c == ']')? + 1;
    let (mut members, rest) = (members.get(..end)?, members.get(end + 1..)?);
    let mut ranges = Vec::new();
    loop {
        members = match members {
            [] => return Some((Token::Set(ranges, outside), rest)),
            // A range that runs backwards is empty, as in Python.
            [first, '-', last, more @ ..] => {
                ranges.push((*first, *last));
                more
            }
            [one, more @ ..] => {
                ranges.push((*one, *one));
                more
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn globs_cover_the_whole_name() {
        for (pattern, name, expected) in [
            ("model.layers.1*", "model.layers.10.mlp", true),
            ("model.layers.1*", "x.model.layers.10", false),
            ("*lm_head*", "model.lm_head", true),
            ("a.?", "a.b", true),
            ("a.?", "axb", false),
            ("l[0-3]", "l2", true),
            ("l[!0-3]", "l2", false),
            ("l[!0-3]", "l7", true),
            ("a[", "a[", true),
            ("a[]]", "a]", true),
            ("a(b", "a(b", true),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**a*", "xxa", true),
            ("*a*b", "aXbXb", true),
            ("*a*b", "aXbX", false),
            ("*.?_proj", "m.é_proj", true),
            ("l[z-a]", "lb", false),
            ("l[!z-a]", "lb", true),
            ("l[a-]", "l-", true),
            ("l[-a]", "l-", true),
            ("l[!]]", "l]", false),
            ("l[!", "l[!", true),
            ("l[^a]", "l^", true),
            (r"l[\\]", r"l\", true),
            ("A", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    proptest! {
        /// As regular expressions understand the same patterns.
        #[test]
        fn globs_are_regular_expressions(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let regex = Regex::new(&format!(r"\A(?:{expression})\z")).unwrap();
            prop_assert_eq!(Glob::new(&pattern).matches(&name), regex.is_match(&name));
        }
    }

    /// Patterns are tried against every module: no name may take exponential time.
    #[test]
    fn many_stars() {
        let glob = Glob::new(&"*a".repeat(30));
        assert!(!glob.matches(&("a".repeat(2000) + "b")));
        assert!(glob.matches(&"ba".repeat(1000)));
    }

    #[test]
    fn match_is_anchored_at_the_start_only() {
        assert!(python_match(".*gate").unwrap().is_match("mlp.gate_up_proj"));
        assert!(!python_match(".*gate$").unwrap().is_match("mlp.gate_up_proj"));
        assert!(!python_match("gate|up").unwrap().is_match("mlp.gate"));
        assert!(python_match("(?!x)y").unwrap_err().contains("`(?!x)y`"));
    }

    #[test]
    fn fused_names() {
        let fused = FusedModules::default();
        let parts = fused.parts("m.0.attn.qkv_proj").unwrap();
        assert_eq!(parts, ["m.0.attn.q_proj", "m.0.attn.k_proj", "m.0.attn.v_proj"]);
        assert_eq!(fused.parts("gate_up_proj").unwrap(), ["gate_proj", "up_proj"]);
        assert_eq!(fused.parts("m.q_proj"), None);
    }
}
