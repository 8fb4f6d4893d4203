// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// States of TCP sockets, of linux/tcp_states.h.
const (
	stateEstablished = "01"
	stateListen      = "0A"
)

const lookTick = 5 * time.Millisecond

type tcpSocket struct {
	state       string
	local, peer netip.AddrPort
}

func tcpSockets(pid int) ([]tcpSocket, error) {
	var out []tcpSocket
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // number, local, peer, state
			if len(fields) < 4 || fields[0] == "sl" {
				continue
			}
			local, ok1 := parseAddress(fields[1])
			peer, ok2 := parseAddress(fields[2])
			if ok1 && ok2 {
				out = append(out, tcpSocket{fields[3], local, peer})
			}
		}
	}
	return out, nil
}

// parseAddress reads an address as /proc/net/tcp has it: words of 4 bytes in the machine's order, a colon and the port.
func parseAddress(text string) (netip.AddrPort, bool) {
	address, digits, _ := strings.Cut(text, ":")
	b, err1 := hex.DecodeString(address)
	port, err2 := strconv.ParseUint(digits, 16, 16)
	if err1 != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok
}

// lookAt sets the congestion control of a measurement, and its addresses to the addresses at both ends of a running
// connection. It returns false if the connection does not exist yet. The client's addresses come from its own
// socket: where a socket is translated, the kernel's table has the translated address.
func lookAt(m *load.Measurement, client, server int, t Traffic) bool {
	all, _ := tcpSockets(server)
	i := slices.IndexFunc(all, func(s tcpSocket) bool { return s.state == stateEstablished && s.local == t.Path.Listen })
	if i < 0 {
		return false
	}
	m.ServerLocal, m.ServerPeer = all[i].local, all[i].peer
	return ownSocket(m, client, t.Path.Connect)
}

func ownSocket(m *load.Measurement, pid int, to netip.AddrPort) bool {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		target, _ := os.Readlink(dir + "/" + entry.Name())
		number, err := strconv.Atoi(entry.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		found := describe(m, fd, to)
		_ = unix.Close(fd)
		if found {
			return true
		}
	}
	return false
}

// describe sets the client's addresses and congestion control from a socket connected to an address, or returns false.
func describe(m *load.Measurement, fd int, to netip.AddrPort) bool {
	peer, err1 := unix.Getpeername(fd)
	local, err2 := unix.Getsockname(fd)
	congestion, err3 := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err1 != nil || err2 != nil || err3 != nil || load.AddrPort(peer) != to {
		return false
	}
	m.ClientLocal, m.ClientPeer, m.ClientCongestion = load.AddrPort(local), to, congestion
	return true
}
