// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"mustang/internal/load"
)

// sockperf is https://github.com/Mellanox/sockperf. Its messages have 14 bytes or more. Of its
// time it does not count the first 0.4 s and the last 0.05 s, so it gets a second more.
var sockperf = Engine{
	Name: "sockperf", debian: "sockperf", programs: []string{"sockperf"},
	version:   regexp.MustCompile(`sockperf, version ([0-9.]+)`),
	workloads: []string{load.TCPRR}, many: true,
	serve: func(t Traffic) []string {
		return []string{"sockperf", "server", "--tcp", "-i", t.Path.Listen.Addr().String(), "-p", portOf(t.Path.Listen), "--uc-reuseaddr"}
	},
	drive: func(t Traffic) []string {
		return []string{
			"sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", t.Path.Connect.Addr().String(), "-p", portOf(t.Path.Connect),
			"-t", strconv.Itoa(t.Seconds + 1), "-m", strconv.Itoa(smallestMessage),
		}
	},
	read: figuresOfSockperf,
}

// smallestMessage is the size of sockperf's requests and responses in bytes.
const smallestMessage = 14

// sockperfSum is the line on the time after sockperf's warm-up.
var sockperfSum = regexp.MustCompile(`\[Valid Duration\] RunTime=([0-9.]+) sec; SentMessages=[0-9]+; ReceivedMessages=([0-9]+)`)

func figuresOfSockperf(_ Traffic, o outputs) (m load.Measurement, err error) {
	all := sockperfSum.FindAllSubmatch(o.client, -1)
	if all == nil {
		return m, errors.New("no figures in the output of the client")
	}
	found := all[len(all)-1]
	m.Note = repeated("sockperf", len(all))
	seconds, err1 := strconv.ParseFloat(string(found[1]), 64)
	count, err2 := strconv.ParseUint(string(found[2]), 10, 64)
	if err := errors.Join(err1, err2); err != nil || !(seconds > 0) || count > maxCount {
		return m, fmt.Errorf("odd figures: %q", found[0])
	}
	m.Count, m.Seconds = count, seconds
	return m, nil
}
