// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const maxFile = 16 << 20 // bytes of a file that are stored

// archive is a tar.gz that is written incrementally. Any goroutine may call its methods.
type archive struct {
	mu      sync.Mutex
	tar     *tar.Writer
	gzip    *gzip.Writer
	left    int64         // bytes that it still takes, before they are compressed
	each    time.Duration // longest time for a file
	missing []string      // what could not be collected, and why
	err     error         // of the writer, after which nothing is added
}

func newArchive(w io.Writer, limit int64, each time.Duration) *archive {
	zip := gzip.NewWriter(w)
	return &archive{tar: tar.NewWriter(zip), gzip: zip, left: limit, each: each}
}

// collect adds a file with the output of a function. If the function fails or takes too long, the file is listed as
// missing, and contains the output until then.
func (a *archive) collect(ctx context.Context, name string, do func(ctx context.Context, to io.Writer) error) {
	if ctx.Err() != nil {
		a.lack(name, context.Cause(ctx))
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.each, fmt.Errorf("not done within %s", a.each))
	defer cancel()
	from, to := io.Pipe()
	defer from.Close() // ends a function that goes on
	context.AfterFunc(ctx, func() { to.CloseWithError(context.Cause(ctx)) })
	go func() { to.CloseWithError(do(ctx, to)) }()
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		a.lack(name, err)
	}
	if err == nil || len(data) > 0 {
		a.add(name, data)
	}
}

func (a *archive) add(name string, data []byte) {
	if len(data) > maxFile {
		a.lack(name, fmt.Errorf("only the first %d bytes are kept", maxFile))
		data = data[:maxFile]
	}
	data = redact(data)
	a.mu.Lock()
	left := a.left - int64(len(data))
	if left >= 0 {
		a.left = left
		a.write(name, data)
	}
	a.mu.Unlock()
	if left < 0 {
		a.lack(name, fmt.Errorf("%d bytes do not fit", len(data)))
	}
}

func (a *archive) write(name string, data []byte) {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
	err := a.tar.WriteHeader(&header)
	if err == nil {
		_, err = a.tar.Write(data)
	}
	a.err = cmp.Or(a.err, err)
}

func (a *archive) lack(what string, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing = append(a.missing, fmt.Sprintf("%s: %s", what, strings.Join(strings.Fields(why.Error()), " ")))
}

func (a *archive) close() error {
	a.write("missing.txt", redact([]byte(strings.Join(a.missing, "\n")+"\n")))
	return errors.Join(a.err, a.tar.Close(), a.gzip.Close())
}

// merge adds the files of another archive, up to the end of its reader, below a directory. Its names are made safe.
func (a *archive) merge(dir string, from io.Reader) error {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	files := tar.NewReader(zip)
	for header, err := files.Next(); !errors.Is(err, io.EOF); header, err = files.Next() {
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(files, maxFile+1))
		if err != nil {
			return err
		}
		a.add(path.Join(dir, path.Clean("/"+header.Name)), data)
	}
	_, err = io.Copy(io.Discard, zip)
	return err
}

const removed = "REMOVED" // replaces secrets, and values that look like one

// secretName matches names of fields, environment variables and flags that hold secrets.
var secretName = regexp.MustCompile(
	`(?i)pass(word|wd|phrase)?$|passw|[a-z0-9][_-]?pwd$|secret|token|credential|api[-_]?key|private[-_]?key|` +
		`access[-_]?key|[a-z0-9][-_]key$|key[-_]?data|[-_]auth$|basic-?auth|signature|psk$|authorization|cookie|htpasswd|` +
		`dockerc(on)?f|dsn$|^auths?$`)

var blocks = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`)

const secretValue = `(?:\\?"[^"]*"|'[^']*'|[^\s"',;&}]+)`

// patterns match secrets in a line; $1 stays. Logs are long: only lines with one of the words, lower case, count.
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
			again := key == "managedFields" || strings.HasSuffix(key, "last-applied-configuration") // these repeat the object
			if again || secretName.MatchString(key) || key == "value" && secretName.MatchString(name) {
				v[key] = removed
			} else {
				v[key] = redactValue(item)
			}
		}
	}
	return value
}
