// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bufio"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// ofListeners marks the tables of ports that list what an endpoint listened on when a policy first selected it: programs take the
// end of an open connection that listens for its server.
const ofListeners = uint32(1) << 31

// mostListeners bounds the ports of one pod, and allListeners those of all: a pod chooses how many it listens on.
const mostListeners, allListeners = 512, mostRows / 8

// noteListeners stores the ports that the pods listen on which have no rule sets yet, and are to get some. A namespace that cannot
// be read has none, nor has one with too many: programs then guess. Of endpoints that join with rule sets it stores that they do.
func (w *writer) noteListeners(want map[netip.Addr]policy.Sets) error {
	selected, joining := map[uint64]uint32{}, map[uint32]bool{}
	for a, sets := range want {
		row, ok, err := w.Objects.Endpoints.Get(rows.EncodeAddr(a))
		if err != nil {
			return err
		}
		if sets == (policy.Sets{}) {
			continue
		} else if ok && row.Netns != 0 && row.Egress == 0 && row.Ingress == 0 {
			selected[row.Netns] = row.Id
		} else if id, joins := w.joining[a.Unmap()]; joins && !ok {
			joining[id] = true
		}
	}
	if len(selected)+len(joining) == 0 {
		return nil
	}
	room, err := w.roomForListeners()
	if err != nil {
		return err
	}
	if room, err = w.noteJoining(joining, room); err != nil || len(selected) == 0 {
		return err
	}
	return w.Listening(func(cookie uint64, ports func() []uint16) error {
		id, ok := selected[cookie]
		if !ok {
			return nil
		}
		key := portKey{Table: ofListeners | id, Proto: uint8(service.TCP)}
		keys := []portKey{key}
		for _, key.Port = range ports() {
			key.Length = 16
			keys = append(keys, key)
		}
		if len(keys) > min(mostListeners, room) {
			return nil
		}
		room -= len(keys)
		values := make([]portVerdict, len(keys))
		values[0].Rule = guessTime()
		_, err := w.tables().ports.PutBatch(keys, values)
		return err
	})
}

// noteJoining stores that endpoints have no connection from before their policies. Those that get another address are none of them. It
// returns how many more ports may be stored.
func (w *writer) noteJoining(joining map[uint32]bool, room int) (int, error) {
	if len(joining) == 0 {
		return room, nil
	}
	for row, err := range w.Objects.Endpoints.All() {
		if err != nil {
			return room, err
		}
		delete(joining, row.Value.Id)
	}
	for id := range joining {
		keys := []portKey{{Table: ofListeners | id, Proto: uint8(service.TCP)}, {Table: ofListeners | id, Proto: uint8(service.SCTP)}}
		if len(keys) > room {
			break
		}
		room -= len(keys)
		if _, err := w.tables().ports.PutBatch(keys, []portVerdict{{Allow: 1}, {Allow: 1}}); err != nil {
			return room, err
		}
	}
	return room, nil
}

// guessTime is the time as programs compare it with that of a pod's first policy (GUESS_TIME in bpf/mustang/police.h).
func guessTime() uint32 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return uint32(now.Nano() >> 30)
}

// roomForListeners returns how many more ports may be stored.
func (w *writer) roomForListeners() (int, error) {
	room := allListeners
	for row, err := range w.tables().ports.All() {
		if err != nil {
			return 0, err
		}
		if row.Key.Table >= ofListeners {
			room--
		}
	}
	return room, nil
}

// forgetListeners deletes the ports of endpoints that have no rule sets.
func (w *writer) forgetListeners() error {
	selected := map[uint32]bool{}
	for row, err := range w.Objects.Endpoints.All() {
		if err != nil {
			return err
		}
		if row.Value.Egress != 0 || row.Value.Ingress != 0 {
			selected[row.Value.Id] = true
		}
	}
	var gone []portKey
	for row, err := range w.tables().ports.All() {
		if err != nil {
			return err
		}
		if row.Key.Table >= ofListeners && !selected[row.Key.Table&^ofListeners] {
			gone = append(gone, row.Key)
		}
	}
	return w.tables().ports.DeleteBatch(gone)
}

// ReadListening returns the ports of the sockets that listen, by a table of the kernel such as /proc/net/tcp. In the kernel's list they come first.
func ReadListening(path string) (ports []uint16) {
	const stateListen = "0A"
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] == "sl" {
			continue
		}
		_, port, _ := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil || fields[3] != stateListen {
			break
		}
		ports = append(ports, uint16(n))
	}
	return ports
}
