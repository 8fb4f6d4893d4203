// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/suggest"
)

// Native is the name of Mustang's own load generator, which [List] leaves out.
const Native = "native"

// List returns all engines.
func List() []Engine { return []Engine{iperf3, netperf, sockperf} }

// Lookup returns the engine of a name.
func Lookup(name string) (Engine, error) {
	names := []string{Native}
	for _, e := range List() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Engine{}, fmt.Errorf("unknown engine %q: want one of %s%s", name, strings.Join(names, ", "),
		suggest.Text(name, names))
}

// netperf is https://github.com/HewlettPackard/netperf. A control connection goes to the
// server's own address, on a port of its own; only the data connection takes the path.
var netperf = Engine{
	Name: "netperf", debian: "netperf (in Debian's section non-free)", programs: []string{"netperf", "netserver"},
	version:   regexp.MustCompile(`Netperf version ([0-9.]+)`),
	workloads: []string{load.TCPStream, load.TCPRR}, control: controlPort,
	serve: func(t Traffic) []string {
		listen := t.Path.Listen.Addr()
		return []string{"netserver", "-D", "-f", familyOf(listen), "-L", listen.String(), "-p", strconv.Itoa(controlPort)}
	},
	drive: driveNetperf, read: figuresOfNetperf,
}

const controlPort = 12865

// netperfFigures are netperf's names of what it is to print ("omni output selectors").
const netperfFigures = "THROUGHPUT,LOCAL_SEND_CALLS,REMOTE_BYTES_RECVD,LOCAL_TRANSPORT_RETRANS"

func familyOf(addr netip.Addr) string {
	if addr.Is6() {
		return "-6"
	}
	return "-4"
}

func driveNetperf(t Traffic) []string {
	listen, connect := t.Path.Listen.Addr(), t.Path.Connect
	command := []string{
		"netperf", familyOf(listen), "-H", listen.String(), "-p", strconv.Itoa(controlPort), "-P", "0", "-l",
		strconv.Itoa(t.Seconds),
		"-t", "omni", "--", "-T", "tcp", "-H", connect.Addr().String(), "-P", "0," + portOf(connect), "-K", lab.Congestion,
		"-k", netperfFigures,
	}
	if t.Workload == load.TCPRR {
		return append(command, "-d", "rr", "-r", "1,1", "-D")
	}
	return append(command, "-d", "send", "-m", "128K", "-M", "128K")
}

func figuresOfNetperf(t Traffic, o outputs) (m load.Measurement, err error) {
	values := map[string]float64{}
	for line := range strings.Lines(string(o.client)) {
		name, text, found := strings.Cut(strings.TrimSpace(line), "=")
		value, err := strconv.ParseFloat(text, 64)
		if found && (err != nil || !(value >= -1 && value < maxCount)) {
			return m, fmt.Errorf("odd figure: %q", line)
		}
		values[name] = value
	}
	rate := values["THROUGHPUT"] // transactions or megabits per second
	amount, perUnit := values["LOCAL_SEND_CALLS"], 1.0
	if t.Workload == load.TCPStream {
		amount, perUnit = values["REMOTE_BYTES_RECVD"], 8/1e6
	}
	m.Count = uint64(max(amount, 0))
	if !(rate > 0) || m.Count == 0 {
		return m, errors.New("no figures in the output of the client")
	}
	m.Seconds = amount * perUnit / rate
	m.Retransmits = uint32(min(max(values["LOCAL_TRANSPORT_RETRANS"], 0), math.MaxUint32))
	return m, nil
}

// sockperf is https://github.com/Mellanox/sockperf. Its messages have 14 bytes or more. It leaves out the first 0.4
// s and the last 0.05 s of its time: it therefore runs a second more.
var sockperf = Engine{
	Name: "sockperf", debian: "sockperf", programs: []string{"sockperf"},
	version:   regexp.MustCompile(`sockperf, version ([0-9.]+)`),
	workloads: []string{load.TCPRR}, many: true,
	serve: func(t Traffic) []string {
		return []string{"sockperf", "server", "--tcp", "-i", t.Path.Listen.Addr().String(), "-p", portOf(t.Path.Listen),
			"--uc-reuseaddr"}
	},
	drive: func(t Traffic) []string {
		return []string{
			"sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", t.Path.Connect.Addr().String(), "-p", portOf(t.Path.Connect),
			"-t", strconv.Itoa(t.Seconds + 1), "-m", strconv.Itoa(smallestMessage),
		}
	},
	read: figuresOfSockperf,
}

const smallestMessage = 14 // the size of sockperf's requests and responses in bytes

// sockperfSum is the line on the time after sockperf's warm-up.
var sockperfSum = regexp.MustCompile(
	`\[Valid Duration\] RunTime=([0-9.]+) sec; SentMessages=[0-9]+; ReceivedMessages=([0-9]+)`)

func figuresOfSockperf(_ Traffic, o outputs) (m load.Measurement, err error) {
	all := sockperfSum.FindAllSubmatch(o.client, -1)
	if all == nil {
		return m, errors.New("no figures in the output of the client")
	}
	found := all[len(all)-1]
	seconds, err1 := strconv.ParseFloat(string(found[1]), 64)
	count, err2 := strconv.ParseUint(string(found[2]), 10, 64)
	if err := errors.Join(err1, err2); err != nil || !(seconds > 0) || count > maxCount {
		return m, fmt.Errorf("odd figures: %q", found[0])
	}
	m.Count, m.Seconds = count, seconds
	return m, nil
}
