// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A connection begins with a header from the client, which over UDP is repeated
// until it is answered:
//
//	magic "MST3" | workload code | flows | 2 bytes zero | group | warmup |
//	duration | stall | limit | settle | size | window |
//	congestion control, 16 bytes, zero-padded
//
// The flows of one run have the same group, a number that is drawn for each run.
// Numbers are 8 bytes, big-endian; times are nanoseconds.
const (
	headerMagic   = "MST3"
	maxCongestion = 16 // TCP_CA_NAME_MAX of linux/tcp.h
	headerSize    = 8 + 8*8 + maxCongestion
)

// encodeHeader announces a run of workload w on the session, with the congestion
// control that its socket got.
func encodeHeader(w workload, s *session) []byte {
	spec := s.spec
	b := append(make([]byte, 0, headerSize), headerMagic...)
	b = append(b, w.code(), byte(spec.flows()), 0, 0)
	b = binary.BigEndian.AppendUint64(b, s.share.group)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Warmup))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Duration))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.stall()))
	b = binary.BigEndian.AppendUint64(b, spec.Limit)
	b = binary.BigEndian.AppendUint64(b, spec.Settle)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.size()))
	b = binary.BigEndian.AppendUint64(b, spec.Window)
	b = append(b, s.congestion...)
	return append(b, make([]byte, headerSize-len(b))...)
}

// announcement is what a header says.
type announcement struct {
	load  workload
	spec  Spec
	group uint64
}

// decodeHeader reads what encodeHeader wrote.
func decodeHeader(b []byte) (announcement, error) {
	if len(b) != headerSize || string(b[:len(headerMagic)]) != headerMagic {
		return announcement{}, errors.New("traffic: not a mustang client, or one of another version")
	}
	w, err := lookupCode(b[4])
	if err != nil {
		return announcement{}, err
	}
	spec := Spec{
		Workload:   w.name(),
		Flows:      int(b[5]),
		Warmup:     time.Duration(binary.BigEndian.Uint64(b[16:])),
		Duration:   time.Duration(binary.BigEndian.Uint64(b[24:])),
		Stall:      time.Duration(binary.BigEndian.Uint64(b[32:])),
		Limit:      binary.BigEndian.Uint64(b[40:]),
		Settle:     binary.BigEndian.Uint64(b[48:]),
		Size:       int(binary.BigEndian.Uint64(b[56:])),
		Window:     binary.BigEndian.Uint64(b[64:]),
		Congestion: strings.TrimRight(string(b[72:]), "\x00"),
	}
	if spec.Flows < 1 || spec.Flows > MaxFlows || spec.Flows > 1 && w.name() == TCPRR {
		return announcement{}, fmt.Errorf("traffic: header with %d flows of %s", spec.Flows, spec.Workload)
	}
	if spec.Size < MinDatagram || spec.Size > maxDatagram {
		return announcement{}, fmt.Errorf("traffic: header with datagrams of %d bytes", spec.Size)
	}
	if spec.Warmup < 0 || spec.Duration < 0 || spec.Stall <= 0 {
		return announcement{}, fmt.Errorf("traffic: header with warmup %v, duration %v, stall %v",
			spec.Warmup, spec.Duration, spec.Stall)
	}
	return announcement{w, spec, binary.BigEndian.Uint64(b[8:])}, nil
}
