// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// removed replaces what is or looks like a secret.
const removed = "REMOVED"

// secretName matches names of fields, environment variables and flags that hold secrets.
var secretName = regexp.MustCompile(
	`(?i)pass(word|wd|phrase)?$|passw|[a-z0-9][_-]?pwd$|secret|token|credential|api[-_]?key|private[-_]?key|` +
		`access[-_]?key|[a-z0-9][-_]key$|key[-_]?data|[-_]auth$|basic-?auth|signature|psk$|authorization|cookie|htpasswd|` +
		`dockerc(on)?f|dsn$|^auths?$`)

var blocks = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`)

const secretValue = `(?:\\?"[^"]*"|'[^']*'|[^\s"',;&}]+)`

// patterns match secrets in a line; $1 stays. Logs are long, so only lines with one of the words, in lower case, are
// searched.
var patterns = []struct {
	words []string
	*regexp.Regexp
}{
	// JSON Web Tokens (RFC 7519)
	{[]string{"eyj"}, regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?`)},
	// the whole header
	{[]string{"authorization", "cookie"},
		regexp.MustCompile(`(?i)(\b(?:proxy-)?(?:authorization|(?:set-)?cookie)\\?["']?\s*[:=]\s*)(?:\\?"[^"]*"|[^\r\n"]+)`)},
	{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`)},
	{[]string{"pass", "pwd", "secret", "token", "credential", "key", "auth", "signature", "psk"}, regexp.MustCompile(
		`(?i)((?:pass(?:word|wd|phrase)?|[a-z0-9][_-]?pwd|secret|token|credentials?|api[-_]?key|private[-_]?key|` +
			`access[-_]?key|key-data|signature)[\w.-]*\\?["']?\s*[:=]\s*)` + secretValue)},
	{[]string{"key", "auth", "psk"}, regexp.MustCompile(`(?i)([a-z0-9][-_](?:key|auth|psk)\\?["']?\s*[:=]\s*)` +
		secretValue)},
	{[]string{"--"}, regexp.MustCompile(
		`(?i)(--[\w-]*(?:password|passwd|token|secret|api-?key|basic-auth|psk)[\w-]*\s+)(?:"[^"]*"|'[^']*'|[^\s-]\S*)`)},
	// user and password of a URL, which may have a slash
	{[]string{"://"}, regexp.MustCompile(`(\b[a-z][a-z0-9+.-]*://)[^/\s:@"]*:[^\s"]+@`)},
	{[]string{"."}, regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)}, // bootstrap tokens of Kubernetes
	// keys of clouds and forges
	{[]string{"akia", "asia", "gh", "github_pat_", "glpat-", "xox"},
		regexp.MustCompile(`()\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|(?:gh[pousr]_|github_pat_)\w{20,}|glpat-[\w-]{20,}|` +
			`xox[a-z]-[\w-]{10,})`)},
}

// redact returns a text or JSON without secrets, or texts that look like secrets. It removes Secrets and kubeconfigs.
func redact(data []byte) []byte {
	var value any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') &&
		d.Decode(&value) == nil && !d.More() {
		if out, err := json.MarshalIndent(redactValue(value), "", " "); err == nil {
			return append(out, '\n')
		}
	}
	return []byte(redactText(string(data)))
}

func redactText(text string) string {
	if strings.Contains(text, "client-key-data:") || strings.Contains(text, "kind: Secret") {
		return removed + ": it has credentials\n"
	}
	var out strings.Builder
	for line := range strings.Lines(blocks.ReplaceAllString(text, removed)) {
		lower := strings.ToLower(line)
		for _, p := range patterns {
			if slices.ContainsFunc(p.words, func(word string) bool { return strings.Contains(lower, word) }) {
				line = p.ReplaceAllString(line, "${1}"+removed)
			}
		}
		out.WriteString(line)
	}
	return out.String()
}

func redactValue(value any) any {
	switch v := value.(type) {
	case string:
		return redactText(v)
	case []any:
		after := false // a flag whose value is the next word
		for i, item := range v {
			word, isText := item.(string)
			if v[i] = redactValue(item); after && isText && !strings.HasPrefix(word, "-") {
				v[i] = removed
			}
			after = isText && strings.HasPrefix(word, "-") && !strings.Contains(word, "=") && secretName.MatchString(word)
		}
	case map[string]any:
		if kind, _ := v["kind"].(string); kind == "Secret" || kind == "Config" && v["users"] != nil {
			return removed + ": " + kind
		}
		name, _ := v["name"].(string)
		for key, item := range v {
			switch item.(type) {
			case bool, json.Number, nil:
				continue
			}
			again := key == "managedFields" || strings.HasSuffix(key, "last-applied-configuration") // all of an object
			if again || secretName.MatchString(key) || key == "value" && secretName.MatchString(name) {
				v[key] = removed
			} else {
				v[key] = redactValue(item)
			}
		}
	}
	return value
}
