// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

func writes(text string, err error) func(context.Context, io.Writer) error {
	return func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, text)
		return err
	}
}

// TestArchive collects files, and lists the ones that fail, take too long, are too large, or come after the context's
// end.
func TestArchive(t *testing.T) {
	var file bytes.Buffer
	a := newArchive(&file, 2<<20, time.Second)
	ctx, cancel := context.WithCancelCause(t.Context())
	a.collect(ctx, "good", writes("password="+secret, nil))
	a.collect(ctx, "half", writes("half", errors.New("no\nmore")))
	a.collect(ctx, "never", func(_ context.Context, to io.Writer) error {
		_, _ = io.WriteString(to, "begun")
		select {}
	})
	a.collect(ctx, "large", writes(strings.Repeat("x", 3<<20), nil))
	a.collect(ctx, "after", writes("small", nil))
	cancel(errors.New("enough"))
	a.collect(ctx, "late", writes("late", nil))
	testkit.Succeed(t, a.close())
	want := map[string]string{
		"good": "password=REMOVED", "half": "half", "never": "begun", "after": "small",
		"missing.txt": "half: no more\nnever: not done within 1s\nlarge: 3145728 bytes do not fit\nlate: enough\n",
	}
	have := testkit.Unpack(t, &file)
	testkit.Check(t, fmt.Sprint(have) == fmt.Sprint(want), "there is %q, want %q", have, want)
}

// TestMerge puts another archive below a directory, with any names, and removes its secrets.
func TestMerge(t *testing.T) {
	var inner, outer bytes.Buffer
	from := newArchive(&inner, 1<<20, time.Minute)
	for _, name := range []string{"a/b", "../../etc/x", "/abs"} {
		from.write(name, []byte("token: "+secret))
	}
	testkit.Succeed(t, from.close())
	a := newArchive(&outer, 1<<20, time.Minute)
	testkit.Succeed(t, a.merge("nodes/n", bytes.NewReader(inner.Bytes())))
	err := a.merge("nodes/m", bytes.NewReader(inner.Bytes()[:inner.Len()/2]))
	testkit.Check(t, err != nil, "half an archive is taken for a whole one")
	err = a.merge("nodes/m", strings.NewReader("exec: no such file"))
	testkit.Check(t, err != nil, "a text is taken for an archive")
	testkit.Succeed(t, a.close())
	have := testkit.Unpack(t, &outer)
	for _, name := range []string{"nodes/n/a/b", "nodes/n/etc/x", "nodes/n/abs", "nodes/n/missing.txt"} {
		text, ok := have[name]
		testkit.Check(t, ok && !strings.Contains(text, secret), "%s has %q", name, text)
	}
}

// TestRedact removes secrets from texts and objects, and leaves other texts.
func TestRedact(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJIdW50ZXIyIjoiaHVudGVyMiJ9.Hunter2hunter2"
	for _, text := range []string{
		"password=" + secret, "PASSWORD: " + secret, `level=INFO db_password="` + secret + ` and more"`,
		"Authorization: Bearer " + secret,
		"authorization: Basic " + secret + "==", "token " + token, "https://user:" + secret + "@registry.example/x",
		"--bootstrap-token " + secret,
		"-----BEGIN RSA PRIVATE KEY-----\n" + secret + "\n-----END RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n" +
			secret,
		"MY_API_KEY=" + secret, "users:\n- user:\n    client-key-data: " + secret, "kind: Secret\ndata: {x: " + secret +
			"}", `msg="{\"password\":\"` + secret + `\"}"`,
		`{"kind": "Secret", "data": {"x": "` + secret + `"}}`, `{"items": [{"kind": "Secret", "stringData": {"x": "` +
			secret + `"}}]}`,
		`{"apiVersion": "v1", "kind": "Config", "users": [{"user": {"x": "` + secret +
			`"}}]}`, `{"env": [{"name": "DB_PASSWORD", "value": "` + secret + `"}]}`,
		`{"args": ["--password=` + secret + `"]}`, `{"args": ["--token", "` + secret + `"]}`, `{"k8s_auth_token": "` +
			secret + `", "x": 1}`,
		`{"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "` + secret + `"}}}`,
		`{"auths": {"registry.example": {"auth": "` + secret + `"}}}`, "AKIAHUNTER2HUNTER222 unter2"[:20], "ghp_" +
			secret + secret,
		"github_pat_" + secret + "_" + secret, "glpat-" + secret + "-" + secret, "DB_PWD=" +
			secret, `{"name": "DB_PWD", "value": "` + secret + `"}`,
		"https://user:a/b@" + secret + "@registry.example/x", "postgres://user:" + secret + "/" + secret + "@db/x",
		"Authorization: ApiKey " + secret, "Proxy-Authorization: Digest username=x, response=" +
			secret, "Cookie: a=b; session=" + secret, `--password "a ` + secret + `"`,
		`{"env": [{"name": "ENCRYPTION_KEY", "value": "` + secret + `"}, {"name": "REDIS_AUTH", "value": "` + secret +
			`"}]}`, "SSH_KEY=" + secret, "--basic-auth=user:" + secret,
		"https://s3.example/x?X-Amz-Signature=" + secret, "xoxb-123456-" + secret, "ike_psk: " + secret,
		`{"message": "got Bearer ` + secret + `"}`, `{"clientKeyData": ["` + secret + `"]}`, `{"credentials": {"x": "` +
			secret + `"}}`,
	} {
		out := string(redact([]byte(text)))
		testkit.Check(t, !strings.Contains(strings.ToLower(out), "unter2") && strings.Contains(out, removed),
			"%s\nis %s", text, out)
	}
	for _, text := range []string{
		"service shop/web: ok\n  10.96.0.20:80/tcp  2 backends  installed\n", "level=INFO msg=synced services=12\n",
		"net/ipv4/ip_forward = 1\n",
		"PWD=/root", "GET http://192.0.2.1:8080/healthz from pod@x", "nodes fd00::1 via 2001:db8::1 dev eth0",
		"2026-01-01T00:00:00Z keyed by name", "[not json",
	} {
		out := string(redact([]byte(text)))
		testkit.Check(t, out == text, "%s\nis %s", text, out)
	}
	const object = `{"automountServiceAccountToken": true, "ports": [80, 1234567890123456789], "secretCount": 3, ` +
		`"name": "web"}`
	out := string(redact([]byte(object)))
	testkit.Check(t, !strings.Contains(out, removed) && strings.Contains(out, "1234567890123456789"), "%s", out)
}
