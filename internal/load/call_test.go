// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load/clock"
	"mustang/internal/testkit"
)

// FuzzReply reads messages of an agent on another machine. Whatever they are, they end in
// a reply or an error, with texts that are safe to print.
func FuzzReply(f *testing.F) {
	histogram := hdrhistogram.New(1, int64(time.Minute), 3)
	_ = histogram.RecordValue(12_345)
	encoded, _ := histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	measured, err := json.Marshal(Reply{ID: 7, Measurement: Measurement{Workload: TCPRR}, Histogram: encoded})
	testkit.Succeed(f, err)
	f.Add(measured)
	for _, seed := range []string{
		`{"id":0,"hello":{"protocol":1,"version":"v1.0.0"}}`, `{"id":0,"hello":{"protocol":2,"version":"\u001b[31m"}}`,
		`{"id":1,"address":"10.0.0.1:7"}`, `{"id":2,"error":{"message":"connect: refused\nby it","errno":111}}`,
		`{"id":3,"served":{"workload":"tcp_rr","local":"[::1]:5"}}`, `{"id":4,"measurement":{},"histogram":"HISTFAAAAA=="}`,
		"Last login: Sun Nov 22\n{}", strings.Repeat("[", 5000), "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		messages := NewMessageReader(strings.NewReader(string(data)), maxReply)
		for {
			var r Reply
			err := messages.Read(&r)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				_, _ = hdrhistogram.Decode(r.Histogram)
				err = r.checkHello()
			}
			if err == nil && r.Error != nil {
				err = errors.New(Printable(r.Error.Message))
			}
			if err == nil {
				continue
			}
			text := err.Error()
			testkit.Check(t, !strings.ContainsAny(text, "\x1b\n\r") && len(text) <= 5000, "error %q", text)
			return
		}
	})
}

// TestPerUnit divides by the units, if there are any.
func TestPerUnit(t *testing.T) {
	m := Measurement{Units: 4, Machine: clock.MachineTime{BusySeconds: 2, NetRX: 6, NetTX: 2}}
	if m.CPUMicrosPerUnit() != 500_000 || m.SoftirqsPerUnit() != 2 {
		t.Errorf("%g us and %g softirqs per unit", m.CPUMicrosPerUnit(), m.SoftirqsPerUnit())
	}
	if (Measurement{Machine: m.Machine}).CPUMicrosPerUnit() != 0 ||
		(Measurement{Machine: m.Machine}).SoftirqsPerUnit() != 0 {
		t.Error("figures per unit of nothing")
	}
}

// TestPrintable checks that the text of another machine becomes one line of bounded length.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"one\n\n  two\r\n":             "one; two",
		"\x1b]0;title\a \x00 \xff é":   "?]0;title? ? \ufffd é",
		strings.Repeat("é", maxText+5): "..." + strings.Repeat("é", maxText),
	} {
		got := Printable(text)
		testkit.Check(t, got == want, "Printable(%q) = %q, want %q", text, got, want)
	}
}

// TestInvalidMessage checks that the error about a message that quotes itself at length is short and printable.
func TestInvalidMessage(t *testing.T) {
	line := `{"address":"` + strings.Repeat("\x1b", 13) + strings.Repeat("\x80", 13000) + `"}`
	var m struct{ Address netip.Addr }
	err := NewMessageReader(strings.NewReader(line), 1<<16).Read(&m)
	testkit.Check(t, err != nil && len(err.Error()) <= 3*maxText && !strings.Contains(err.Error(), "\x1b"),
		"error of %d bytes: %v", len(fmt.Sprint(err)), err)
	line = `{"address":"` + strings.Repeat("a", 13000) + `"}`
	err = NewMessageReader(strings.NewReader(line), 1<<16).Read(&m)
	testkit.Check(t, err != nil && len(err.Error()) <= 3*maxText, "error of %d bytes", len(fmt.Sprint(err)))
}

// TestSpecValidate checks that specs that make no sense are refused.
func TestSpecValidate(t *testing.T) {
	good := Spec{Workload: TCPRR, Target: netip.MustParseAddrPort("127.0.0.1:1"), Duration: time.Second}
	err := good.Validate()
	testkit.Check(t, err == nil, "good spec: %v", err)
	for name, spoil := range map[string]func(*Spec){
		"delay":      func(s *Spec) { s.Delay = MaxDelay + 1 },
		"delay, crr": func(s *Spec) { s.Workload, s.Delay = TCPCRR, 1 },
		"workload":   func(s *Spec) { s.Workload = "sctp" },
		"no target":  func(s *Spec) { s.Target = netip.AddrPort{} },
		"port 0":     func(s *Spec) { s.Target = netip.MustParseAddrPort("[::1]:0") },
		"flows":      func(s *Spec) { s.Workload, s.Flows = TCPStream, MaxFlows+1 },
		"rr flows":   func(s *Spec) { s.Flows = 2 },
		"negative":   func(s *Spec) { s.Workload, s.Flows = TCPStream, -1 },
		"limit":      func(s *Spec) { s.Workload, s.Flows, s.Limit = UDPStream, 3, 2 },
		"limit, tcp": func(s *Spec) { s.Workload, s.Limit = TCPStream, 2 },
		"duration":   func(s *Spec) { s.Duration = -1 },
		"warmup":     func(s *Spec) { s.Warmup = -1 },
		"stall":      func(s *Spec) { s.Stall = -1 },
		"small":      func(s *Spec) { s.Size = MinDatagram - 1 },
		"large":      func(s *Spec) { s.Size = MaxDatagram + 1 },
		"settle":     func(s *Spec) { s.Settle = 1 },
		"window":     func(s *Spec) { s.Window, s.Rate = 1, 1 },
		"pace":       func(s *Spec) { s.Workload, s.Pace = TCPCRR, 2 },
		"reverse":    func(s *Spec) { s.Reverse = true },
	} {
		spec := good
		spoil(&spec)
		err := spec.Validate()
		testkit.Check(t, err != nil, "%s: no error", name)
	}
}

// ProcessState returns how the agent's process has ended.
func (a *Agent) ProcessState() *os.ProcessState { return a.cmd.ProcessState }

// Ping returns when the agent answers. It returns an error if the agent has ended, or is given up.
func (a *Agent) Ping(ctx context.Context) error {
	_, err := a.call(ctx, Call{Op: OpPing}, a.timeout)
	return err
}
