// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/lock"
)

// deniedJSON is a line of policy trace -o json.
type deniedJSON struct {
	Time           string `json:"time"`   // RFC 3339
	Source         string `json:"source"` // empty if it is not known, as of a packet to a link-local address
	SourcePod      string `json:"source_pod,omitempty"`
	Destination    string `json:"destination"`
	DestinationPod string `json:"destination_pod,omitempty"`
	Protocol       string `json:"protocol"`
	Message        string `json:"message,omitempty"` // of ICMP
	Verdict        string `json:"verdict"`
	Rule           string `json:"rule"`
}

func (c commands) trace() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Print connections that policies deny, as they come",
		Long: `Print a line for each connection that policies deny, as it comes, with the rule that denies it,
until Ctrl-C. "audited" connections passed, as policies are only audited (policy apply --audit). A
packet that is sent again is denied again. With -o json each line is an object. One command can trace or
monitor at a time, and it ends when the datapath is removed.`,
		Example: "  mustang policy trace",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.CheckOutput(format); err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return c.OnExisting(cmd.Context(), errors.New("there are no policies"), func(d *datapath.Datapath) error {
				fmt.Fprintln(c.Stderr, "mustang: waiting for denied connections; Ctrl-C ends")
				t := tracer{commands: c, datapath: d, format: format}
				err := d.Policies().Watch(cmd.Context(), t.print, t.leftOut)
				var other *lock.Error
				switch {
				case errors.As(err, &other) && cmd.Context().Err() == nil:
					return fmt.Errorf("another policy trace or monitor runs, process %d, and only one can at a time", other.PID)
				case errors.Is(err, os.ErrNotExist):
					return errors.New("the datapath was removed: there is nothing to trace any more")
				}
				return err
			})
		},
	}
	cli.AddOutput(cmd, &format)
	return cmd
}

// tracer prints what is denied.
type tracer struct {
	commands
	datapath *datapath.Datapath
	format   string
	known    known
	read     time.Time // when it was known
}

func (t *tracer) leftOut(n uint64) error {
	fmt.Fprintf(t.Stderr, "mustang: %d events left out, as too many came at once\n", n)
	return nil
}

// current is how long names of pods and rules are good for.
const current = 2 * time.Second

func (t *tracer) print(e policies.Denied) (err error) {
	if time.Since(t.read) > current {
		if t.known, err = know(t.datapath); err != nil {
			return err
		}
		t.read = time.Now()
	}
	source, destination := t.known.end(e.Source.Addr()), t.known.end(e.Destination.Addr())
	line := deniedJSON{
		Time: e.Time.Format(time.RFC3339Nano), Source: text(e.Source), SourcePod: source.Pod,
		Destination: text(e.Destination), DestinationPod: destination.Pod, Protocol: e.Protocol.String(),
		Verdict: "denied", Rule: t.known.describe(e.Rule),
	}
	if e.Protocol == unix.IPPROTO_ICMP || e.Protocol == unix.IPPROTO_ICMPV6 {
		line.Protocol, line.Message = "icmp", message(e)
	}
	if e.Audited {
		line.Verdict = "audited"
	}
	line.leaveOut(e)
	if t.format == "json" {
		return json.NewEncoder(t.Stdout).Encode(line)
	}
	words := []string{
		e.Time.Format("15:04:05.000"), line.Protocol, line.Message, line.SourcePod, line.Source, ">", line.DestinationPod, line.Destination,
		line.Verdict, "by", line.Rule,
	}
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	_, err = fmt.Fprintln(t.Stdout, strings.Join(words, " "))
	return err
}

// leaveOut leaves out an address that was in no packet: one end's address is that which the pod of the device is known by, if it is of
// another family than the other end's, as of a packet to a link-local address.
func (l *deniedJSON) leaveOut(e policies.Denied) {
	source, destination := e.Source.Addr().Unmap(), e.Destination.Addr().Unmap()
	switch {
	case source.Is4() == destination.Is4():
	case source.Is4() && l.SourcePod != "":
		l.Source = ""
	case destination.Is4() && l.DestinationPod != "":
		l.Destination = ""
	}
}

// text returns an address, with its port if it has one.
func text(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// message returns what a message of ICMP is (RFC 792, RFC 4443).
func message(e policies.Denied) string {
	request, reply := uint8(8), uint8(0)
	if e.Protocol == unix.IPPROTO_ICMPV6 {
		request, reply = 128, 129
	}
	switch e.Message {
	case request:
		return "echo request"
	case reply:
		return "echo reply"
	}
	return fmt.Sprintf("type %d", e.Message)
}
