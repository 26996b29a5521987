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

/// Python's `fnmatch`, case-sensitive: `*`, `?`, `[…]` and `[!…]` over the whole name.
pub fn fnmatch(pattern: &str, name: &str) -> bool {
    let mut expression = String::from(r"(?s)\A");
    let chars: Vec<char> = pattern.chars().collect();
    let mut i = 0;
    while let Some(&c) = chars.get(i) {
        i += 1;
        match c {
            '*' => expression.push_str(".*"),
            '?' => expression.push('.'),
            '[' => {
                // A `]` right after the bracket (or its `!`) is a member of the set.
                let mut end = i;
                if chars.get(end) == Some(&'!') {
                    end += 1;
                }
                if chars.get(end) == Some(&']') {
                    end += 1;
                }
                while chars.get(end).is_some_and(|&c| c != ']') {
                    end += 1;
                }
                match chars.get(i..end).filter(|_| end < chars.len()) {
                    None => expression.push_str(r"\["),
                    Some(set) => {
                        let (negated, set) = match set {
                            ['!', rest @ ..] => (true, rest),
                            set => (false, set),
                        };
                        expression.push_str(if negated { "[^" } else { "[" });
                        for &c in set {
                            if matches!(c, '\\' | '[' | ']' | '^' | '&' | '~') {
                                expression.push('\\');
                            }
                            expression.push(c);
                        }
                        expression.push(']');
                        i = end + 1;
                    }
                }
            }
            c => expression.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    expression.push_str(r"\z");
    Regex::new(&expression).is_ok_and(|regex| regex.is_match(name))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(fnmatch(pattern, name), expected, "{pattern} {name}");
        }
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
