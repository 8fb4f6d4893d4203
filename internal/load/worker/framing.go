// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mustang/internal/load"
)

// A connection begins with a header from the client, which is repeated over UDP until
// it is answered:
//
//	magic "MST6" | workload code | flows | 1 if reversed | 1 byte zero | stall | window |
//	request | response | delay
//
// Numbers are 8 bytes, big-endian; times are nanoseconds.
const (
	headerMagic = "MST6"
	headerSize  = 8 + 5*8
)

// header is the content of a header. Fields of the spec that concern the client alone
// are zero.
type header struct {
	workload workload
	spec     load.Spec
}

func encodeHeader(w workload, spec load.Spec) []byte {
	b := append(make([]byte, 0, headerSize), headerMagic...)
	b = append(b, w.code, byte(spec.FlowCount()), 0, 0)
	if spec.Reverse {
		b[6] = 1
	}
	for _, n := range []uint64{
		uint64(spec.StallTime()), spec.Window, uint64(spec.RequestSize()), uint64(spec.ResponseSize()), uint64(spec.Delay),
	} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

func decodeHeader(b []byte) (header, error) {
	if len(b) != headerSize || string(b[:len(headerMagic)]) != headerMagic {
		return header{}, errors.New("load: not a mustang client, or one of another version")
	}
	w, err := lookupCode(b[4])
	if err != nil {
		return header{}, err
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[8+8*i:]) }
	spec := load.Spec{
		Workload: w.name, Flows: int(b[5]), Reverse: b[6] == 1,
		Stall: time.Duration(number(0)), Window: number(1), Request: int(number(2)), Response: int(number(3)), Delay: time.Duration(number(4)),
	}
	if spec.Flows == 0 || spec.Stall == 0 || spec.Request == 0 || spec.Response == 0 {
		return header{}, fmt.Errorf("load: header without a value: %+v", spec)
	}
	return header{w, spec}, spec.CheckTraffic()
}

// maxReport bounds a server's report, in bytes.
const maxReport = 1 << 16

// served returns a report with the session's own fields.
func (s *session) served() load.Served {
	return load.Served{Local: s.local, Peer: s.peer, Congestion: s.congestion}
}

// sendReport sends a report to the client: a length of 4 bytes and JSON.
func (s *session) sendReport(r load.Served) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	if _, err := s.Write(frame); err != nil {
		return fmt.Errorf("send report: %w", err)
	}
	return nil
}

func (s *session) readReport() (load.Served, error) {
	length := make([]byte, 4)
	if err := s.readFull(length); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	n := binary.BigEndian.Uint32(length)
	if n > maxReport {
		return load.Served{}, fmt.Errorf("read report: length %d", n)
	}
	body := make([]byte, n)
	if err := s.readFull(body); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	return decodeReport(body)
}

// decodeReport reads a report.
func decodeReport(body []byte) (load.Served, error) {
	var r load.Served
	if err := json.Unmarshal(body, &r); err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// drain reads until the client has closed its end, so that the report is not lost to a
// reset.
func (s *session) drain() {
	buf := make([]byte, 1)
	for {
		if _, err := s.read(buf); err != nil {
			return
		}
	}
}
