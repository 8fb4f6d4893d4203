// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"mustang/internal/lab"
	"mustang/internal/load"
)

// iperf3 is https://github.com/esnet/iperf. Its server ends after one client and prints JSON like the client.
var iperf3 = Engine{
	Name: "iperf3", debian: "iperf3", programs: []string{"iperf3"}, version: regexp.MustCompile(`^iperf ([0-9.]+)`),
	workloads: []string{load.TCPStream, load.UDPStream}, many: true, serverEnds: true,
	serve: func(t Traffic) []string {
		return []string{"iperf3", "-s", "-1", "-J", "-B", t.Path.Listen.Addr().String(), "-p", portOf(t.Path.Listen)}
	},
	drive: driveIPerf3, read: figuresOfIPerf3,
}

const maxCount = 1 << 60

func driveIPerf3(t Traffic) []string {
	command := []string{
		"iperf3", "-c", t.Path.Connect.Addr().String(), "-p", portOf(t.Path.Connect), "-J", "-i", "0", "-t",
		strconv.Itoa(t.Seconds),
	}
	flows := max(t.Flows, 1)
	if flows > 1 {
		command = append(command, "-P", strconv.Itoa(flows))
	}
	if t.Workload == load.UDPStream {
		return append(command, "-u", "-l", strconv.Itoa(load.DefaultDatagram), "-b",
			strconv.FormatUint(t.Rate/uint64(flows), 10))
	}
	return append(command, "-C", lab.Congestion)
}

func portOf(ap netip.AddrPort) string { return strconv.Itoa(int(ap.Port())) }

type iperf3JSON struct {
	Error string `json:"error"`
	Start struct {
		Connected []struct {
			LocalHost  string `json:"local_host"`
			LocalPort  uint16 `json:"local_port"`
			RemoteHost string `json:"remote_host"`
			RemotePort uint16 `json:"remote_port"`
		} `json:"connected"`
	} `json:"start"`
	End struct {
		Sent       iperf3Sum `json:"sum_sent"`
		Received   iperf3Sum `json:"sum_received"`
		Congestion string    `json:"sender_tcp_congestion"`
	} `json:"end"`
}

type iperf3Sum struct {
	Seconds     float64 `json:"seconds"`
	Bytes       float64 `json:"bytes"`
	Packets     float64 `json:"packets"`
	Lost        float64 `json:"lost_packets"`
	Retransmits float64 `json:"retransmits"`
}

func figuresOfIPerf3(t Traffic, o outputs) (m load.Measurement, err error) {
	client, err := readIPerf3("client", o.client)
	if err != nil {
		return m, err
	}
	server, err := readIPerf3("server", o.server)
	if err != nil {
		return m, err
	}
	sum := client.End.Received
	figures := []float64{sum.Bytes, sum.Packets, sum.Lost, sum.Packets - sum.Lost, client.End.Sent.Retransmits}
	if !(sum.Seconds > 0) || slices.ContainsFunc(figures, func(x float64) bool { return !(x >= 0 && x < maxCount) }) {
		return m, fmt.Errorf("odd figures of the receiver: %+v", sum)
	}
	m.Count, m.Seconds = uint64(sum.Bytes), sum.Seconds
	m.Retransmits = uint32(min(client.End.Sent.Retransmits, math.MaxUint32))
	m.ClientCongestion = client.End.Congestion
	if t.Workload == load.UDPStream {
		m.Sent, m.Received = uint64(sum.Packets), uint64(sum.Packets-sum.Lost)
	}
	if m.ClientLocal, m.ClientPeer, err = client.addresses(); err != nil {
		return m, err
	}
	m.ServerLocal, m.ServerPeer, err = server.addresses()
	return m, err
}

// readIPerf3 reads the last complete JSON of one end that names a connection or an error: iperf3 3.16 and 3.17 print it
// twice (https://github.com/esnet/iperf/issues/1688).
func readIPerf3(end string, output []byte) (r iperf3JSON, err error) {
	found := false
	for decoder := json.NewDecoder(bytes.NewReader(output)); err == nil; {
		var next iperf3JSON
		if err = decoder.Decode(&next); err == nil && (next.Error != "" || len(next.Start.Connected) > 0) {
			r, found = next, true
		}
	}
	switch {
	case !found:
		return r, fmt.Errorf("read the JSON of the %s: %w", end, err)
	case r.Error != "":
		return r, fmt.Errorf("%s: %s", end, r.Error)
	}
	return r, nil
}

func (r iperf3JSON) addresses() (local, peer netip.AddrPort, err error) {
	if len(r.Start.Connected) == 0 {
		return local, peer, errors.New("no connection is named")
	}
	c := r.Start.Connected[0]
	localAddr, err1 := netip.ParseAddr(c.LocalHost)
	peerAddr, err2 := netip.ParseAddr(c.RemoteHost)
	return netip.AddrPortFrom(localAddr.Unmap(), c.LocalPort), netip.AddrPortFrom(peerAddr.Unmap(), c.RemotePort),
		errors.Join(err1, err2)
}
