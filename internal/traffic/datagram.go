// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
)

// Every datagram of a UDP workload begins with:
//
//	magic "MSU1" | kind | 1 if an answer is wanted | 2 bytes zero |
//	flow, 8 bytes | number, 8 bytes
//
// Numbers are big-endian. The flow is drawn anew for each connection, so that
// what comes late of another is known.
const (
	datagramMagic = "MSU1"
	// MinDatagram and maxDatagram are the least and the greatest [Spec.Size]; the
	// latter is the most that IPv4 carries in one packet.
	MinDatagram = 24
	maxDatagram = 65507
)

// Kinds of datagrams.
const (
	// From the client.
	datagramHello    = 'h' // a header follows; answered by a welcome or a refusal
	datagramWarmup   = 'w' // load, not counted
	datagramMeasured = 'm' // load, counted
	datagramEnd      = 'e' // answered by a report
	datagramBye      = 'b' // the report has arrived
	// From the server.
	datagramWelcome = 'c'
	datagramRefusal = 'x' // the reason follows
	datagramAnswer  = 'a' // with the number of the datagram that it answers
	datagramAlive   = 'l' // the server hears the client; sent now and then
	datagramReport  = 'r' // a report in JSON follows
)

// datagram is the beginning of one.
type datagram struct {
	kind   byte
	answer bool
	flow   uint64
	number uint64
}

// put writes it to the beginning of b.
func (d datagram) put(b []byte) {
	copy(b, datagramMagic)
	b[4], b[5], b[6], b[7] = d.kind, 0, 0, 0
	if d.answer {
		b[5] = 1
	}
	binary.BigEndian.PutUint64(b[8:], d.flow)
	binary.BigEndian.PutUint64(b[16:], d.number)
}

// parseDatagram reads it. It is not ok if b is none of ours.
func parseDatagram(b []byte) (d datagram, ok bool) {
	if len(b) < MinDatagram || string(b[:len(datagramMagic)]) != datagramMagic {
		return datagram{}, false
	}
	return datagram{
		kind: b[4], answer: b[5] == 1,
		flow: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
	}, true
}

// with returns a datagram of this beginning and a body.
func (d datagram) with(body []byte) []byte {
	b := make([]byte, MinDatagram, MinDatagram+len(body))
	d.put(b)
	return append(b, body...)
}
