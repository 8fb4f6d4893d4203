// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/datapath/objects"
)

// schema is the version of the JSON.
const schema = 1

// timeoutNames are the states with time-outs, and what they are in the words of flags.
var timeoutNames = [...]struct{ state, use string }{
	{conntrack.StateSYN.String(), "TCP: the client has not answered the backend yet"},
	{conntrack.StateEstablished.String(), "TCP: open, or closed by one end"},
	{conntrack.StateClosed.String(), "TCP: closed by both ends, or reset"},
	{conntrack.StateUDP.String(), "UDP: the backend has not answered"},
	{conntrack.StateReplied.String(), "UDP: the backend has answered"},
}

// values returns the time-outs in the order of timeoutNames.
func values(t *objects.Timeouts) []*time.Duration {
	return []*time.Duration{&t.SYN, &t.Established, &t.Closed, &t.UDP, &t.UDPReplied}
}

type connectionJSON struct {
	Protocol  string `json:"protocol"`
	State     string `json:"state"`
	Client    string `json:"client"`
	Service   string `json:"service"`
	Source    string `json:"source"`
	Backend   string `json:"backend"`
	ServiceID uint32 `json:"service_id"`
	Age       int64  `json:"age_seconds"`
	Idle      int64  `json:"idle_seconds"`
}

// writeList writes connections in a format, table or json. Source is in the table where it is not the client, and Service
// where there is one.
func writeList(w io.Writer, format string, list []conntrack.Connection) error {
	out := []connectionJSON{}
	for _, c := range list {
		out = append(out, connectionJSON{
			c.Protocol.String(), c.State.String(), c.Client.String(), c.Service.String(), c.Source.String(), c.Backend.String(), c.ServiceID,
			int64(c.Age / time.Second), int64(c.Idle / time.Second),
		})
	}
	if format == "json" {
		return writeJSON(w, struct {
			Schema      int              `json:"schema"`
			Connections []connectionJSON `json:"connections"`
		}{schema, out})
	}
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "PROTOCOL\tSTATE\tCLIENT\tSERVICE\tSOURCE\tBACKEND\tAGE\tIDLE")
	for _, c := range out {
		if c.Source == c.Client {
			c.Source = "-"
		}
		if c.ServiceID == 0 {
			c.Service = "-"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%ds\t%ds\n", c.Protocol, c.State, c.Client, c.Service, c.Source, c.Backend, c.Age, c.Idle)
	}
	return tab.Flush()
}

type statsJSON struct {
	Schema        int            `json:"schema"`
	Slots         int            `json:"slots"`
	Open          int            `json:"open"`
	FillPercent   float64        `json:"fill_percent"`
	States        map[string]int `json:"states"`
	Expired       int            `json:"expired"`
	Void          int            `json:"void"`
	Free          int            `json:"free"`
	LargestClient string         `json:"largest_client"`
	LargestOpen   int            `json:"largest_open"`
	Share         int            `json:"share"`
}

// writeStats writes what slots hold in a format, table or json.
func writeStats(w io.Writer, format string, s conntrack.Stats) error {
	out := statsJSON{
		Schema: schema, Slots: s.Slots, Open: s.Open(), States: make(map[string]int), Expired: s.Expired, Void: s.Void,
		Free: s.Slots - s.Expired - s.Void, LargestOpen: s.LargestOpen, Share: s.Share,
	}
	if s.Slots > 0 {
		out.FillPercent = 100 * float64(out.Open) / float64(s.Slots)
	}
	switch {
	case s.Largest.IsValid():
		out.LargestClient = s.Largest.String()
	case s.LargestOpen > 0:
		out.LargestClient = "outside"
	}
	for i, name := range timeoutNames {
		n := s.States[conntrack.State(i)]
		out.States[name.state] = n
		out.Free -= n
	}
	if format == "json" {
		return writeJSON(w, out)
	}
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tab, "slots\t%d\nopen\t%d\t%.1f %%\n", out.Slots, out.Open, out.FillPercent)
	for _, name := range timeoutNames {
		fmt.Fprintf(tab, "%s\t%d\n", name.state, out.States[name.state])
	}
	fmt.Fprintf(tab, "expired\t%d\nvoid\t%d\nfree\t%d\n", out.Expired, out.Void, out.Free)
	fmt.Fprintf(tab, "largest client\t%d\t%s\nshare of a client\t%d\n", out.LargestOpen, cmp.Or(out.LargestClient, "-"), out.Share)
	return tab.Flush()
}

// writeTimeouts writes time-outs in a format, table or json.
func writeTimeouts(w io.Writer, format string, t objects.Timeouts) error {
	seconds := make(map[string]float64)
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "STATE\tTIME-OUT")
	for i, value := range values(&t) {
		seconds[timeoutNames[i].state] = value.Seconds()
		fmt.Fprintf(tab, "%s\t%s\n", timeoutNames[i].state, value)
	}
	if format == "json" {
		return writeJSON(w, struct {
			Schema   int                `json:"schema"`
			Timeouts map[string]float64 `json:"timeout_seconds"`
		}{schema, seconds})
	}
	return tab.Flush()
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
