// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// drive plays a run of 2 rounds of 3 rows, of which the last sample falls away.
func drive(p Progress, clock *time.Time) {
	p.Note("building")
	p.Start(6, 10*time.Second)
	for round := range 2 {
		for _, row := range []string{"veth/pod-ip tcp_rr", "bridge-call-on/cluster-ip/iptables tcp_stream", "c"} {
			if round == 1 && row == "c" {
				p.Note("c: failed: no way")
				continue
			}
			p.Sample(row)
			*clock = clock.Add(20 * time.Second)
			p.Done()
		}
		p.Round(round+1, 2)
	}
	p.Finish()
	p.Note("done")
}

func TestProgressLines(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	drive(&reporter{w: &out, terminal: false, now: func() time.Time { return clock }}, &clock)
	want := `building
about 1m00s
about 1m15s left
round 1 of 2 done, about 57s left
about 19s left
c: failed: no way
round 2 of 2 done
done
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// escape is a terminal's control sequence.
var escape = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func TestProgressTerminal(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	drive(&reporter{w: &out, terminal: true, now: func() time.Time { return clock }}, &clock)
	text := out.String()
	for _, want := range []string{
		" 1m00s left", "1m28s left", "19s left", "veth/pod-ip tcp_rr", "bridge-call-on/cluster-ip/iptables …", " 83% ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %q", want, text)
		}
	}
	// What a terminal shows in the end: the notes, and no remains of the bar.
	var screen []string
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		drawn := ""
		for part := range strings.SplitSeq(line, "\r") {
			erased := strings.Contains(part, "\x1b[2K")
			part = escape.ReplaceAllString(part, "")
			if n := utf8.RuneCountInString(part); n > 80 {
				t.Errorf("%d columns: %q", n, part)
			}
			if part != "" || erased {
				drawn = part
			}
		}
		screen = append(screen, strings.TrimSpace(drawn))
	}
	want := []string{"building", "c: failed: no way", "done"}
	if strings.Join(screen, "|") != strings.Join(want, "|") {
		t.Errorf("screen shows %q, want %q; raw %q", screen, want, text)
	}
}

// TestProgressLater adds the suites to come to the time left of the first.
func TestProgressLater(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := &reporter{w: &out, terminal: false, now: func() time.Time { return clock }}
	p.Later(time.Minute)
	p.Start(1, 10*time.Second)
	clock = clock.Add(20 * time.Second)
	p.Done()
	p.Round(1, 1)
	p.Later(0)
	p.Start(1, 50*time.Second)
	p.Round(1, 1)
	if want := "about 1m10s\nround 1 of 1 done, about 1m00s left\nabout 50s\nround 1 of 1 done\n"; out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestProgressWithoutSamplesIsSilent(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, true)
	p.Start(0, time.Second)
	p.Round(1, 1)
	p.Finish()
	p.Finish()
	if out.Len() != 0 {
		t.Errorf("wrote %q", out.String())
	}
}

func TestClockTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                            "0s",
		499 * time.Millisecond:       "0s",
		59500 * time.Millisecond:     "1m00s",
		61 * time.Second:             "1m01s",
		3*time.Hour + 62*time.Second: "3h01m",
	} {
		if got := clockTime(d); got != want {
			t.Errorf("clockTime(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestPaceOfTime has the time left fall as time passes, on a terminal and elsewhere, and a line after 30 s.
func TestPaceOfTime(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		clock := time.Unix(0, 0)
		p := &reporter{w: &out, terminal: terminal, now: func() time.Time { return clock }}
		p.Expect(0, 2*time.Minute)
		for range 50 {
			p.Sample("veth/pod-ip tcp_rr")
			clock = clock.Add(time.Second)
		}
		p.Expect(50*time.Second, 40*time.Second) // the networks are built sooner than expected
		for range 40 {
			p.Sample("veth/pod-ip tcp_rr")
			clock = clock.Add(time.Second)
		}
		p.Expect(90*time.Second, 0)
		if want := "about 2m00s\nabout 1m30s left\nabout 30s left\n"; !terminal && out.String() != want {
			t.Errorf("lines %q, want %q", out.String(), want)
		}
		last, percent := 2*time.Minute, 0
		for _, found := range regexp.MustCompile(`(\d[0-9ms]*) left .*?(\d+)% `).FindAllStringSubmatch(out.String(), -1) {
			left, err := time.ParseDuration(found[1])
			if err != nil || left > last {
				t.Errorf("%q, after %v: %v", found[0], last, err)
			}
			last = left
			percent, _ = strconv.Atoi(found[2])
		}
		if terminal && (last != 0 || percent != 99) {
			t.Errorf("in the end %v left, %d %%", last, percent)
		}
	}
}
