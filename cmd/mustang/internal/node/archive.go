// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
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

// maxFile is how many bytes of a file are kept.
const maxFile = 16 << 20

// missingFile is the name of the list of what could not be collected.
const missingFile = "missing.txt"

// archive is a tar.gz under construction. Its methods may be called from any goroutine.
type archive struct {
	mu      sync.Mutex
	tar     *tar.Writer
	gzip    *gzip.Writer
	left    int64
	missing []string
	now     time.Time
}

// stream begins an archive that is written as it grows. limit is how many bytes it has at most before it is compressed.
func stream(w io.Writer, limit int64) *archive {
	zip := gzip.NewWriter(w)
	return &archive{tar: tar.NewWriter(zip), gzip: zip, left: limit, now: time.Now()}
}

// Add adds a file, without what is secret in it. What is too long is cut, and what there is no room for is missing.
func (a *archive) Add(name string, data []byte) error {
	if len(data) > maxFile {
		a.Missing(name, fmt.Errorf("only the first %d of %d bytes are kept", maxFile, len(data)))
		data = data[:maxFile]
	}
	return a.write(name, redact(data))
}

func (a *archive) write(name string, data []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left < int64(len(data)) {
		a.missing = append(a.missing, fmt.Sprintf("%s: %d bytes do not fit", name, len(data)))
		return nil
	}
	a.left -= int64(len(data))
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: a.now}
	if err := a.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

// Missing notes what could not be collected, and why.
func (a *archive) Missing(what string, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing = append(a.missing, fmt.Sprintf("%s: %s", what, strings.Join(strings.Fields(why.Error()), " ")))
}

// Close adds the list of what is missing, which it returns.
func (a *archive) Close() (missing []string, err error) {
	missing = a.missing
	a.left = maxFile
	list := strings.Join(missing, "\n") + "\n"
	return missing, errors.Join(a.write(missingFile, redact([]byte(list))), a.tar.Close(), a.gzip.Close())
}

// item is a file of an archive, and what collects it.
type item struct {
	Name    string
	Collect func(ctx context.Context, to io.Writer) error
}

// Collect adds items one after the other, each within some time. What fails is missing, but for what it had written, and so is what is left
// when the context ends. Errors: those of the archive.
func (a *archive) Collect(ctx context.Context, each time.Duration, items []item) error {
	for _, item := range items {
		if ctx.Err() != nil {
			a.Missing(item.Name, context.Cause(ctx))
			continue
		}
		data, err := item.collect(ctx, each)
		if err != nil {
			a.Missing(item.Name, err)
		}
		if err != nil && len(data) == 0 {
			continue
		}
		if err := a.Add(item.Name, data); err != nil {
			return err
		}
	}
	return nil
}

func (i item) collect(ctx context.Context, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not done within %s", within))
	defer cancel()
	var out buffer
	done := make(chan error, 1)
	go func() { done <- i.Collect(ctx, &out) }()
	select {
	case err := <-done:
		return out.Bytes(), err
	case <-ctx.Done(): // it may never end
		return out.Bytes(), context.Cause(ctx)
	}
}

// Merge adds the files of another archive below a directory. Its names are made safe, and what is missing there is missing here.
func (a *archive) Merge(dir string, from io.Reader) error {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	for files := tar.NewReader(zip); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(files, maxFile+1))
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := a.Add(path.Join(dir, path.Clean("/"+header.Name)), data); err != nil {
			return err
		}
	}
}

// buffer keeps what is written into it, up to the size of a file. Its methods may be called from any goroutine.
type buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write keeps a part, and says that it kept all.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := maxFile + 1 - b.all.Len(); room < len(p) {
		b.all.Write(p[:room])
	} else {
		b.all.Write(p)
	}
	return len(p), nil
}

// Bytes returns a copy of what there is.
func (b *buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.all.Bytes())
}
