// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/testkit"
)

// FuzzReply reads messages of an agent on another machine. Whatever they are, they end in
// a reply or an error, with texts that are safe to print.
func FuzzReply(f *testing.F) {
	histogram := hdrhistogram.New(1, int64(time.Minute), 3)
	_ = histogram.RecordValue(12_345)
	encoded, _ := histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	measured, err := json.Marshal(Reply{ID: 7, Measurement: Measurement{Workload: TCPRR}, Histogram: encoded})
	testkit.Succeed(f, err)
	f.Add(measured)
	for _, seed := range []string{
		`{"id":0,"hello":{"protocol":1,"version":"v1.0.0"}}`, `{"id":0,"hello":{"protocol":2,"version":"\u001b[31m"}}`,
		`{"id":1,"address":"10.0.0.1:7"}`, `{"id":2,"error":{"message":"connect: refused\nby it","errno":111}}`,
		`{"id":3,"served":{"workload":"tcp_rr","local":"[::1]:5"}}`, `{"id":4,"measurement":{},"histogram":"HISTFAAAAA=="}`,
		"Last login: Sun Nov 22\n{}", strings.Repeat("[", 5000), "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		messages := NewMessageReader(strings.NewReader(string(data)), maxReply)
		for {
			var r Reply
			err := messages.Read(&r)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				_, _ = hdrhistogram.Decode(r.Histogram)
				err = r.checkHello()
			}
			if err == nil && r.Error != nil {
				err = errors.New(Printable(r.Error.Message))
			}
			if err == nil {
				continue
			}
			text := err.Error()
			testkit.Check(t, !strings.ContainsAny(text, "\x1b\n\r") && len(text) <= 5000, "error %q", text)
			return
		}
	})
}
