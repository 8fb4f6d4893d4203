// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"
)

const maxFile = 16 << 20 // bytes of a file that are stored

// archive is a tar.gz that is written incrementally. Any goroutine may call its methods.
type archive struct {
	mu      sync.Mutex
	tar     *tar.Writer
	gzip    *gzip.Writer
	left    int64         // bytes that it still takes, before they are compressed
	each    time.Duration // longest time for a file
	missing []string      // what could not be collected, and why
	err     error         // of the writer, after which nothing is added
}

func newArchive(w io.Writer, limit int64, each time.Duration) *archive {
	zip := gzip.NewWriter(w)
	return &archive{tar: tar.NewWriter(zip), gzip: zip, left: limit, each: each}
}

// collect adds a file with the output of a function. If the function fails or takes too long, the file is listed as
// missing, and contains the output until then.
func (a *archive) collect(ctx context.Context, name string, do func(ctx context.Context, to io.Writer) error) {
	if ctx.Err() != nil {
		a.lack(name, context.Cause(ctx))
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.each, fmt.Errorf("not done within %s", a.each))
	defer cancel()
	from, to := io.Pipe()
	defer from.Close() // ends a function that goes on
	context.AfterFunc(ctx, func() { to.CloseWithError(context.Cause(ctx)) })
	go func() { to.CloseWithError(do(ctx, to)) }()
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		a.lack(name, err)
	}
	if err == nil || len(data) > 0 {
		a.add(name, data)
	}
}

// add adds a file without its secrets.
func (a *archive) add(name string, data []byte) {
	if len(data) > maxFile {
		a.lack(name, fmt.Errorf("only the first %d bytes are kept", maxFile))
		data = data[:maxFile]
	}
	data = redact(data)
	a.mu.Lock()
	left := a.left - int64(len(data))
	if left >= 0 {
		a.left = left
		a.write(name, data)
	}
	a.mu.Unlock()
	if left < 0 {
		a.lack(name, fmt.Errorf("%d bytes do not fit", len(data)))
	}
}

// write writes a file. The caller has the mutex.
func (a *archive) write(name string, data []byte) {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
	err := a.tar.WriteHeader(&header)
	if err == nil {
		_, err = a.tar.Write(data)
	}
	a.err = cmp.Or(a.err, err)
}

func (a *archive) lack(what string, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing = append(a.missing, fmt.Sprintf("%s: %s", what, strings.Join(strings.Fields(why.Error()), " ")))
}

// close adds the list of missing files, and returns the first error of a write.
func (a *archive) close() error {
	a.write("missing.txt", redact([]byte(strings.Join(a.missing, "\n")+"\n")))
	return errors.Join(a.err, a.tar.Close(), a.gzip.Close())
}

// merge adds the files of another archive, up to the end of its reader, below a directory. Its names are made safe.
func (a *archive) merge(dir string, from io.Reader) error {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	files := tar.NewReader(zip)
	for header, err := files.Next(); !errors.Is(err, io.EOF); header, err = files.Next() {
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(files, maxFile+1))
		if err != nil {
			return err
		}
		a.add(path.Join(dir, path.Clean("/"+header.Name)), data)
	}
	_, err = io.Copy(io.Discard, zip)
	return err
}
