// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"mustang/internal/testkit"
)

func quiet() *Progress { return NewProgress(io.Discard, false) }

// onRow is a terminal that calls a function each time that a row is shown.
type onRow func()

func (f onRow) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(" left ")) {
		f()
	}
	return len(p), nil
}

// drive plays a run of two suites of a minute each; the first has a note amid its rows.
func drive(p *Progress) {
	for _, later := range []time.Duration{time.Minute, 0} {
		p.Suite(later)
		p.Note("building")
		for left := time.Minute; left > 0; left -= 20 * time.Second {
			p.Row("bridge-call-on/cluster-ip/iptables tcp_stream", left)
			time.Sleep(10 * time.Second)
			p.Note("so far")
			p.Row("veth/pod-ip tcp_rr", left-10*time.Second)
			time.Sleep(10 * time.Second)
		}
	}
	p.Finish()
	p.Note("done")
}

func TestProgressLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		drive(NewProgress(&out, false))
		const want = "building\nabout 2m00s\nso far\nso far\nabout 1m30s left\nso far\n" +
			"building\nabout 1m00s\nso far\nso far\nabout 30s left\nso far\ndone\n"
		testkit.Check(t, out.String() == want, "got:\n%s\nwant:\n%s", out.String(), want)
	})
}

// TestProgressTerminal checks the live lines, whose time left falls, and that nothing is left of them.
func TestProgressTerminal(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) { drive(NewProgress(&out, true)) })
	text := out.String()
	for _, want := range []string{" 2m00s left", "50s left", "veth/pod-ip tcp_rr",
		"bridge-call-on/cluster-ip/iptables …", " 83 %"} {
		testkit.Check(t, strings.Contains(text, want), "%q is missing in %q", want, text)
	}
	var screen []string // in the end
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		parts := strings.Split(line, "\r\x1b[2K")
		for _, part := range parts {
			n := utf8.RuneCountInString(part)
			testkit.Check(t, n <= 80, "%d columns: %q", n, part)
		}
		screen = append(screen, parts[len(parts)-1])
	}
	notes := []string{"building", "so far", "so far", "so far"}
	want := slices.Concat(notes, notes, []string{"done"})
	testkit.Check(t, slices.Equal(screen, want), "screen shows %q, want %q", screen, want)
	last := time.Hour
	for _, found := range regexp.MustCompile(`(\d[0-9ms]*) left`).FindAllStringSubmatch(text, -1) {
		left, err := time.ParseDuration(found[1])
		if err != nil || left > last {
			t.Errorf("%q, after %v: %v", found[0], last, err)
		}
		last = left
	}
}

// TestPace has the time of samples so far replace the time that is expected.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{started: time.Now(), each: 10 * time.Second, total: 4}
		for _, want := range []time.Duration{40 * time.Second, 45 * time.Second, 50 * time.Second / 3 * 2,
			17500 * time.Millisecond, 0, 0} {
			if got := p.left(); got.Round(time.Millisecond) != want.Round(time.Millisecond) {
				t.Errorf("after %d samples: %v left, want %v", p.done, got, want)
			}
			time.Sleep(20 * time.Second)
			p.done++
		}
	})
}

func TestClockTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                            "0s",
		499 * time.Millisecond:       "0s",
		59500 * time.Millisecond:     "1m00s",
		61 * time.Second:             "1m01s",
		3*time.Hour + 62*time.Second: "3h01m",
	} {
		got := clockTime(d)
		testkit.Check(t, got == want, "clockTime(%v) = %q, want %q", d, got, want)
	}
}
