// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// drive plays a run of 2 rounds of 3 rows, of which the last sample falls away.
func drive(p Reporter, clock *time.Time) {
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
	drive(newReporter(&out, false, func() time.Time { return clock }), &clock)
	want := `building
about 1m00s
round 1 of 2 done, about 1m00s left
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
	drive(newReporter(&out, true, func() time.Time { return clock }), &clock)
	text := out.String()
	for _, want := range []string{
		" 1m00s left", "1m40s left", "20s left", "veth/pod-ip tcp_rr", "bridge-call-on/cluster-ip/iptables …", "(5/6)",
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
	p := newReporter(&out, false, func() time.Time { return clock })
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
	p := New(&out, true)
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

func TestPace(t *testing.T) {
	start := time.Unix(1000, 0)
	p := pace{total: 10, each: time.Second, started: start}
	after := func(d time.Duration) time.Duration { return p.left(start.Add(d)) }
	if got := after(400 * time.Millisecond); got != 9600*time.Millisecond {
		t.Errorf("at first %v", got)
	}
	if got := after(time.Minute); got != 0 {
		t.Errorf("when the first sample is late: %v", got)
	}
	p.done = 4
	if got := after(8 * time.Second); got != 12*time.Second {
		t.Errorf("4 of 10 in 8 s: %v left", got)
	}
	p.complete(2, 4)
	if got := after(10 * time.Second); p.done != 5 || got != 10*time.Second {
		t.Errorf("half done in 10 s: %d, %v left", p.done, got)
	}
	p.done = 12
	if got := after(time.Minute); got != 0 {
		t.Errorf("more than all done: %v", got)
	}
}
