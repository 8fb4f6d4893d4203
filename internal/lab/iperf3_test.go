// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestIperf3 has a foreign client send to the service of every lab: by TCP and
// UDP, IPv4 and IPv6.
func TestIperf3(t *testing.T) {
	testkit.RequireTool(t, "iperf3")
	s := store(t)
	for name, o := range variants() {
		t.Run(name, func(t *testing.T) {
			l := up(t, s, options(o))
			a, b := place(t, l, lab.PodA), place(t, l, lab.PodB)
			server := exec.Command("iperf3", "-s")
			if err := a.Start(server); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = server.Process.Kill()
				_ = server.Wait()
			})
			for _, service := range lab.Services() {
				for _, protocol := range [][]string{{"-n", "256M"}, {"-u", "-b", "20M", "-l", "1400", "-n", "1M"}} {
					got, sent := iperf3(t, b, service.Frontend, protocol...)
					// iperf3's server stops counting when the client says that it is done, which may
					// overtake the last of the data.
					if got < sent/2 || sent < 1<<20 {
						t.Errorf("%s %v: %d of %d bytes received", service.Frontend, protocol, got, sent)
					}
				}
			}
		})
	}
}

// iperf3Report is what we need of iperf3's JSON.
type iperf3Report struct {
	Error string
	End   struct {
		Sum struct {
			Bytes, Packets int64
			Lost           int64 `json:"lost_packets"`
		}
		SumSent     struct{ Bytes int64 } `json:"sum_sent"`
		SumReceived struct{ Bytes int64 } `json:"sum_received"`
	}
}

// iperf3 runs a client and returns the bytes that the server received, and those
// that the client sent.
func iperf3(t *testing.T, from *nl.Namespace, to netip.AddrPort, args ...string) (got, sent int64) {
	t.Helper()
	args = append(args, "-c", to.Addr().String(), "-p", strconv.Itoa(int(to.Port())), "-J",
		"--connect-timeout", "3000", "--get-server-output")
	var report iperf3Report
	testkit.Eventually(t, 10*time.Second, func() (err error) { // the server may not listen yet, or be busy with the last client
		cmd := exec.Command("iperf3", args...)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		report = iperf3Report{}
		if err := from.Start(cmd); err != nil {
			return err
		}
		decodeErr := json.NewDecoder(pipe).Decode(&report)
		// With -J it may exit with 0 in spite of an error.
		if err := cmd.Wait(); err != nil || report.Error != "" {
			return fmt.Errorf("iperf3: %v: %s", err, report.Error)
		}
		return decodeErr
	})
	end := report.End
	if end.Sum.Packets > 0 { // UDP: the sum is the server's count
		return end.Sum.Bytes * (end.Sum.Packets - end.Sum.Lost) / end.Sum.Packets, end.Sum.Bytes
	}
	return end.SumReceived.Bytes, end.SumSent.Bytes
}
