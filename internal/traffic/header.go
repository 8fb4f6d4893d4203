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
//	magic "MST2" | workload code | 3 bytes zero | warmup | duration | stall |
//	limit | settle | size | window | congestion control, 16 bytes, zero-padded
//
// Numbers are 8 bytes, big-endian; times are nanoseconds.
const (
	headerMagic   = "MST2"
	maxCongestion = 16 // TCP_CA_NAME_MAX of linux/tcp.h
	headerSize    = 8 + 7*8 + maxCongestion
)

// encodeHeader announces a run of workload w under spec, with the congestion
// control that the client's socket got.
func encodeHeader(w workload, spec Spec, congestion string) []byte {
	b := append(make([]byte, 0, headerSize), headerMagic...)
	b = append(b, w.code(), 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Warmup))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.Duration))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.stall()))
	b = binary.BigEndian.AppendUint64(b, spec.Limit)
	b = binary.BigEndian.AppendUint64(b, spec.Settle)
	b = binary.BigEndian.AppendUint64(b, uint64(spec.size()))
	b = binary.BigEndian.AppendUint64(b, spec.Window)
	b = append(b, congestion...)
	return append(b, make([]byte, headerSize-len(b))...)
}

// decodeHeader reads what encodeHeader wrote.
func decodeHeader(b []byte) (workload, Spec, error) {
	if len(b) != headerSize || string(b[:len(headerMagic)]) != headerMagic {
		return nil, Spec{}, errors.New("traffic: not a mustang client")
	}
	w, err := lookupCode(b[4])
	if err != nil {
		return nil, Spec{}, err
	}
	spec := Spec{
		Workload:   w.name(),
		Warmup:     time.Duration(binary.BigEndian.Uint64(b[8:])),
		Duration:   time.Duration(binary.BigEndian.Uint64(b[16:])),
		Stall:      time.Duration(binary.BigEndian.Uint64(b[24:])),
		Limit:      binary.BigEndian.Uint64(b[32:]),
		Settle:     binary.BigEndian.Uint64(b[40:]),
		Size:       int(binary.BigEndian.Uint64(b[48:])),
		Window:     binary.BigEndian.Uint64(b[56:]),
		Congestion: strings.TrimRight(string(b[64:]), "\x00"),
	}
	if spec.Size < MinDatagram || spec.Size > maxDatagram {
		return nil, Spec{}, fmt.Errorf("traffic: header with datagrams of %d bytes", spec.Size)
	}
	if spec.Warmup < 0 || spec.Duration < 0 || spec.Stall <= 0 {
		return nil, Spec{}, fmt.Errorf("traffic: header with warmup %v, duration %v, stall %v",
			spec.Warmup, spec.Duration, spec.Stall)
	}
	return w, spec, nil
}
