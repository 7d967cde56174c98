//! Compiles the grammar's notation, draws derivations from it, and recovers derivations from text.

use std::collections::{HashMap, HashSet};

/// The id of the first word in the `stories` vocabulary: 256 bytes and the end token come before it.
pub const FIRST_WORD: u32 = 257;

/// What a rule expands to; `parts` contain only `parts` and sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleKind {
    Parts,
    Sentence,
    Phrase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Word(u16),
    Form { class: usize, form: usize },
    Rule(usize),
}

/// One option of a choice, with its integer weight and ln(weight / total).
#[derive(Debug)]
struct Weighted<T> {
    weight: u32,
    ln_p: f64,
    item: T,
}

type Choices<T> = Vec<Weighted<T>>;

#[derive(Debug)]
struct Rule {
    name: String,
    kind: RuleKind,
    alternatives: Choices<Vec<Symbol>>,
}

/// A class takes one of its values per story; a value has one word per form.
#[derive(Debug)]
struct Class {
    name: String,
    forms: Vec<String>,
    values: Choices<Vec<u16>>,
}

#[derive(Debug)]
struct Word {
    text: String,
    /// True if no space precedes the word (punctuation).
    attached: bool,
    /// True if no space follows the word (an opening quote).
    opens: bool,
    /// The word's tokens with and without a leading space, if the grammar needs them.
    spaced: Option<u32>,
    glued: Option<u32>,
}

/// A weighted grammar with bound words: a rule's alternatives are drawn by weight, and a class is drawn when
/// it is first mentioned and keeps its value until the end of the story.
#[derive(Debug)]
pub struct Grammar {
    classes: Vec<Class>,
    rules: Vec<Rule>,
    start: usize,
    words: Vec<Word>,
    index: HashMap<String, u16>,
    pieces: Vec<String>,
}

/// A drawn or recovered derivation.
#[derive(Clone, Debug, PartialEq)]
pub struct Derivation {
    /// Word ids, in order.
    pub words: Vec<u16>,
    /// Natural logarithm of the derivation's probability: the sum over its choices, leftmost first.
    pub ln_p: f64,
}

/// The result of parsing a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Parse {
    /// Number of derivations; 1 for every story of an unambiguous grammar.
    pub derivations: usize,
    /// ln p of the first derivation found.
    pub ln_p: f64,
    /// The value of each class that is mentioned, in the first derivation found.
    bound: Vec<Option<usize>>,
}

impl Grammar {
    /// Compiles the notation explained at the top of `grammar.txt`. The error names the line.
    pub fn compile(source: &str) -> Result<Self, String> {
        let mut g = Self {
            classes: Vec::new(),
            rules: Vec::new(),
            start: 0,
            words: Vec::new(),
            index: HashMap::new(),
            pieces: Vec::new(),
        };
        let lines = || {
            source
                .lines()
                .enumerate()
                .map(|(i, l)| (i + 1, l.trim()))
                .filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
        };
        for (line, text) in lines().filter(|(_, l)| !l.contains('|')) {
            g.declare(text).map_err(|e| format!("line {line}: {e}"))?;
        }
        let mut head = String::new();
        for (line, text) in lines() {
            match text.split_once('|') {
                None => head = text.to_owned(),
                Some((weight, body)) => {
                    g.alternative(&head, weight, body).map_err(|e| format!("line {line}: {e}"))?
                }
            }
        }
        g.start = g.rule("story")?;
        g.normalize()?;
        g.check_acyclic()?;
        g.assign_pieces()?;
        Ok(g)
    }

    fn declare(&mut self, head: &str) -> Result<(), String> {
        let (kind, rest) = head.split_once(' ').ok_or("expected `KIND NAME`")?;
        if kind == "class" {
            let (name, forms) = rest.split_once(':').ok_or("a class lists its forms after a colon")?;
            let forms = forms.split_whitespace().map(str::to_owned).collect();
            self.classes.push(Class { name: name.trim().to_owned(), forms, values: Vec::new() });
            return Ok(());
        }
        let kind = match kind {
            "parts" => RuleKind::Parts,
            "sentence" => RuleKind::Sentence,
            "phrase" => RuleKind::Phrase,
            other => return Err(format!("unknown kind {other}")),
        };
        if self.rules.iter().any(|r| r.name == rest) {
            return Err(format!("{rest} is declared twice"));
        }
        self.rules.push(Rule { name: rest.to_owned(), kind, alternatives: Vec::new() });
        Ok(())
    }

    fn alternative(&mut self, head: &str, weight: &str, body: &str) -> Result<(), String> {
        let weight: u32 = weight.trim().parse().map_err(|_| format!("bad weight {weight:?}"))?;
        if weight == 0 || weight > 1000 {
            return Err(format!("weight {weight} is not within 1 and 1000"));
        }
        let name = head.split([' ', ':']).nth(1).ok_or("an alternative before any head")?;
        if head.starts_with("class ") {
            let at = self.classes.iter().position(|c| c.name == name).ok_or("unknown class")?;
            let value: Vec<u16> = body.split_whitespace().map(|w| self.intern(w)).collect();
            if value.len() != self.classes[at].forms.len() {
                return Err(format!("{name} has {} forms", self.classes[at].forms.len()));
            }
            self.classes[at].values.push(Weighted { weight, ln_p: 0.0, item: value });
            return Ok(());
        }
        let at = self.rule(name)?;
        let kind = self.rules[at].kind;
        let symbols: Vec<Symbol> =
            body.split_whitespace().map(|s| self.symbol(s)).collect::<Result<_, _>>()?;
        for s in &symbols {
            let fits = match (kind, s) {
                (RuleKind::Parts, Symbol::Rule(r)) => self.rules[*r].kind != RuleKind::Phrase,
                (RuleKind::Parts, _) => false,
                (_, Symbol::Rule(r)) => self.rules[*r].kind == RuleKind::Phrase,
                _ => true,
            };
            if !fits {
                return Err(format!("{s:?} does not belong in {head}"));
            }
        }
        if symbols.is_empty() || matches!(symbols.last(), Some(Symbol::Word(w)) if self.word(*w).opens) {
            return Err("an alternative is empty or ends with an opening quote".into());
        }
        if self.rules[at].alternatives.iter().any(|a| a.item == symbols) {
            return Err("an alternative is listed twice".into());
        }
        self.rules[at].alternatives.push(Weighted { weight, ln_p: 0.0, item: symbols });
        Ok(())
    }

    fn symbol(&mut self, s: &str) -> Result<Symbol, String> {
        if let Some(name) = s.strip_prefix('<').and_then(|s| s.strip_suffix('>')) {
            return self.rule(name).map(Symbol::Rule);
        }
        let Some(name) = s.strip_prefix('{').and_then(|s| s.strip_suffix('}')) else {
            return Ok(Symbol::Word(self.intern(s)));
        };
        let (name, form) = name.split_once('.').unwrap_or((name, "name"));
        let class = self.classes.iter().position(|c| c.name == name).ok_or(format!("no class {name}"))?;
        let form =
            self.classes[class].forms.iter().position(|f| f == form).ok_or(format!("no form {form}"))?;
        Ok(Symbol::Form { class, form })
    }

    fn rule(&self, name: &str) -> Result<usize, String> {
        self.rules.iter().position(|r| r.name == name).ok_or(format!("no rule {name}"))
    }

    fn word(&self, id: u16) -> &Word {
        &self.words[id as usize]
    }

    fn intern(&mut self, notation: &str) -> u16 {
        if let Some(&id) = self.index.get(notation) {
            return id;
        }
        let id = self.words.len() as u16;
        let opens = notation == "“";
        let attached = matches!(notation, "." | "," | "!" | "?" | "”");
        let text = if opens || notation == "”" { "\"" } else { notation };
        self.words.push(Word { text: text.to_owned(), attached, opens, spaced: None, glued: None });
        self.index.insert(notation.to_owned(), id);
        id
    }

    /// Turns weights into log-probabilities. Fails if a rule or class has no alternatives.
    fn normalize(&mut self) -> Result<(), String> {
        fn weigh<T>(choices: &mut Choices<T>, name: &str) -> Result<(), String> {
            if choices.is_empty() {
                return Err(format!("{name} has no alternatives"));
            }
            let total = f64::from(choices.iter().map(|c| c.weight).sum::<u32>());
            for c in choices {
                c.ln_p = (f64::from(c.weight) / total).ln();
            }
            Ok(())
        }
        for c in &mut self.classes {
            weigh(&mut c.values, &c.name)?;
        }
        for r in &mut self.rules {
            weigh(&mut r.alternatives, &r.name)?;
        }
        Ok(())
    }

    /// Checks that no rule reaches itself, so that every derivation and every parse ends.
    fn check_acyclic(&self) -> Result<(), String> {
        fn visit(g: &Grammar, at: usize, open: &mut Vec<usize>, done: &mut [bool]) -> Result<(), String> {
            if open.contains(&at) {
                return Err(format!("rule {} reaches itself", g.rules[at].name));
            }
            if done[at] {
                return Ok(());
            }
            open.push(at);
            for s in g.rules[at].alternatives.iter().flat_map(|a| &a.item) {
                if let Symbol::Rule(r) = s {
                    visit(g, *r, open, done)?;
                }
            }
            open.pop();
            done[at] = true;
            Ok(())
        }
        let mut done = vec![false; self.rules.len()];
        visit(self, self.start, &mut Vec::new(), &mut done)?;
        match done.iter().position(|d| !d) {
            Some(unused) => Err(format!("nothing uses rule {}", self.rules[unused].name)),
            None => Ok(()),
        }
    }

    /// Gives a vocabulary entry to each form of a word that a story can contain: with its leading space, and
    /// without it if the word can follow an opening quote or start the story. Forms of one byte use the
    /// byte's entry.
    fn assign_pieces(&mut self) -> Result<(), String> {
        fn mark(g: &mut Grammar, symbol: Symbol, glued: bool, seen: &mut HashSet<(usize, bool)>) {
            match symbol {
                Symbol::Word(w) => g.mark_word(w, glued),
                Symbol::Form { class, form } => {
                    for v in 0..g.classes[class].values.len() {
                        g.mark_word(g.classes[class].values[v].item[form], glued);
                    }
                }
                Symbol::Rule(r) => {
                    if !seen.insert((r, glued)) {
                        return;
                    }
                    for a in 0..g.rules[r].alternatives.len() {
                        let symbols = g.rules[r].alternatives[a].item.clone();
                        let mut glued = glued;
                        for s in symbols {
                            mark(g, s, glued, seen);
                            glued = matches!(s, Symbol::Word(w) if g.word(w).opens);
                        }
                    }
                }
            }
        }
        mark(self, Symbol::Rule(self.start), true, &mut HashSet::new());
        if FIRST_WORD as usize + self.pieces.len() > 512 {
            return Err(format!("{} word entries; 255 fit into a vocabulary of 512", self.pieces.len()));
        }
        Ok(())
    }

    fn mark_word(&mut self, id: u16, glued: bool) {
        let word = &self.words[id as usize];
        let bare = glued || word.attached;
        if if bare { word.glued } else { word.spaced }.is_some() {
            return;
        }
        let piece = if bare { word.text.clone() } else { format!(" {}", word.text) };
        let token = match piece.as_bytes() {
            [byte] => u32::from(*byte),
            _ => {
                self.pieces.push(piece);
                FIRST_WORD + self.pieces.len() as u32 - 1
            }
        };
        let word = &mut self.words[id as usize];
        *(if bare { &mut word.glued } else { &mut word.spaced }) = Some(token);
    }

    /// Returns the word entries of the `stories` vocabulary, in order from [`FIRST_WORD`].
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// Draws a derivation; `draw(total)` must return each number below `total` with equal probability.
    pub fn draw(&self, mut draw: impl FnMut(u32) -> u32) -> Derivation {
        let mut out = Derivation { words: Vec::with_capacity(96), ln_p: 0.0 };
        let mut bound: Vec<Option<usize>> = vec![None; self.classes.len()];
        let mut stack = vec![Symbol::Rule(self.start)];
        while let Some(symbol) = stack.pop() {
            match symbol {
                Symbol::Word(w) => out.words.push(w),
                Symbol::Form { class, form } => {
                    let values = &self.classes[class].values;
                    let value = *bound[class].get_or_insert_with(|| {
                        let value = pick(values, &mut draw);
                        out.ln_p += values[value].ln_p;
                        value
                    });
                    out.words.push(values[value].item[form]);
                }
                Symbol::Rule(r) => {
                    let alternatives = &self.rules[r].alternatives;
                    let taken = &alternatives[pick(alternatives, &mut draw)];
                    out.ln_p += taken.ln_p;
                    stack.extend(taken.item.iter().rev());
                }
            }
        }
        out
    }

    /// Calls `each` with every word, and with true if the word has no leading space.
    fn spell<'g>(&'g self, words: &[u16], mut each: impl FnMut(&'g Word, bool)) {
        let mut glued = true;
        for &w in words {
            let word = self.word(w);
            each(word, glued || word.attached);
            glued = word.opens;
        }
    }

    /// Returns the text of a word sequence.
    pub fn text(&self, words: &[u16]) -> String {
        let mut out = String::with_capacity(words.len() * 5);
        self.spell(words, |word, bare| {
            if !bare {
                out.push(' ');
            }
            out.push_str(&word.text);
        });
        out
    }

    /// Returns the `stories` tokens of a word sequence: one per word.
    pub fn tokens(&self, words: &[u16]) -> Vec<u32> {
        let mut out = Vec::with_capacity(words.len() + 1);
        self.spell(words, |word, bare| {
            let token = if bare { word.glued } else { word.spaced };
            out.push(token.expect("every form that a derivation contains was marked when compiling"));
        });
        out
    }

    /// Reads text into words; `None` if a word is unknown or the spacing differs from the grammar's.
    fn read(&self, text: &str) -> Option<Vec<u16>> {
        let mut words = Vec::new();
        let mut quoted = false;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let end = match c {
                'a'..='z' | 'A'..='Z' => rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len()),
                _ => c.len_utf8(),
            };
            let piece = &rest[..end];
            rest = &rest[end..];
            let notation = match piece {
                " " => continue,
                "\"" => {
                    quoted = !quoted;
                    if quoted { "“" } else { "”" }
                }
                other => other,
            };
            words.push(*self.index.get(notation)?);
        }
        (self.text(&words) == text).then_some(words)
    }

    /// Finds every derivation of `text` as a story; `None` if there is none.
    pub fn parse_story(&self, text: &str) -> Option<Parse> {
        let words = self.read(text)?;
        let mut search = Search::new(self, &words, false);
        search.walk(Some(&Frame { symbols: &[Symbol::Rule(self.start)], next: None }), 0, 0.0);
        search.found
    }

    /// Returns a form of the value that a class has in a story; `None` if the story does not mention it, or
    /// the grammar has no such class or form.
    pub fn value(&self, story: &Parse, class: &str, form: &str) -> Option<&str> {
        let at = self.classes.iter().position(|c| c.name == class)?;
        let Class { forms, values, .. } = &self.classes[at];
        let form = forms.iter().position(|f| f == form)?;
        Some(&self.word(values[story.bound[at]?].item[form]).text)
    }

    /// Returns true if `text` is one sentence of the grammar, with no class bound before it.
    pub fn is_sentence(&self, text: &str) -> bool {
        let Some(words) = self.read(text) else { return false };
        (0..self.rules.len()).filter(|&r| self.rules[r].kind == RuleKind::Sentence).any(|r| {
            let mut search = Search::new(self, &words, true);
            search.walk(Some(&Frame { symbols: &[Symbol::Rule(r)], next: None }), 0, 0.0);
            search.found.is_some()
        })
    }
}

fn pick<T>(choices: &Choices<T>, draw: &mut impl FnMut(u32) -> u32) -> usize {
    let total = choices.iter().map(|c| c.weight).sum();
    let mut at = draw(total);
    for (i, c) in choices.iter().enumerate() {
        if at < c.weight {
            return i;
        }
        at -= c.weight;
    }
    unreachable!("the draw is below the sum of the weights")
}

/// What is left to match: symbols, then the enclosing frame.
struct Frame<'a> {
    symbols: &'a [Symbol],
    next: Option<&'a Frame<'a>>,
}

/// A search through all derivations of a word sequence, leftmost first.
struct Search<'a> {
    grammar: &'a Grammar,
    words: &'a [u16],
    bound: Vec<Option<usize>>,
    first_only: bool,
    found: Option<Parse>,
}

impl<'a> Search<'a> {
    fn new(grammar: &'a Grammar, words: &'a [u16], first_only: bool) -> Self {
        Self { grammar, words, bound: vec![None; grammar.classes.len()], first_only, found: None }
    }

    fn walk(&mut self, mut frame: Option<&Frame<'_>>, mut at: usize, ln_p: f64) {
        let grammar = self.grammar;
        let mut rest: &[Symbol] = &[];
        loop {
            while rest.is_empty() {
                let Some(f) = frame else { return self.finish(at, ln_p) };
                (rest, frame) = (f.symbols, f.next);
            }
            let symbol = rest[0];
            rest = &rest[1..];
            let after = Frame { symbols: rest, next: frame };
            match symbol {
                Symbol::Word(w) if self.words.get(at) == Some(&w) => at += 1,
                Symbol::Word(_) => return,
                Symbol::Form { class, form } => {
                    let values = &grammar.classes[class].values;
                    if let Some(value) = self.bound[class] {
                        if self.words.get(at) != Some(&values[value].item[form]) {
                            return;
                        }
                        at += 1;
                        continue;
                    }
                    for (i, value) in values.iter().enumerate() {
                        if self.words.get(at) == Some(&value.item[form]) && !self.done() {
                            self.bound[class] = Some(i);
                            self.walk(Some(&after), at + 1, ln_p + value.ln_p);
                            self.bound[class] = None;
                        }
                    }
                    return;
                }
                Symbol::Rule(r) => {
                    for a in &grammar.rules[r].alternatives {
                        if !self.done() {
                            let frame = Frame { symbols: &a.item, next: Some(&after) };
                            self.walk(Some(&frame), at, ln_p + a.ln_p);
                        }
                    }
                    return;
                }
            }
        }
    }

    fn done(&self) -> bool {
        self.first_only && self.found.is_some()
    }

    fn finish(&mut self, at: usize, ln_p: f64) {
        if at < self.words.len() {
            return;
        }
        match &mut self.found {
            Some(found) => found.derivations += 1,
            None => self.found = Some(Parse { derivations: 1, ln_p, bound: self.bound.clone() }),
        }
    }
}
