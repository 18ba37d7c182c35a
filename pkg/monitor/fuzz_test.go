package monitor

import (
	"bytes"
	"testing"
)

// FuzzRecordOfALaterVersion decodes records: what stands behind a record changes
// nothing.
func FuzzRecordOfALaterVersion(f *testing.F) {
	f.Add(encodeRecord(f, sample()), []byte{1, 2, 3})
	f.Add(bytes.Repeat([]byte{2}, recordSize), []byte(nil))
	f.Fuzz(func(t *testing.T, b, more []byte) {
		e, err := Decode(b, boot)
		if err != nil {
			if (e != Event{}) {
				t.Fatalf("%v, and yet %+v", err, e)
			}
			return
		}
		if longer, err := Decode(append(bytes.Clone(b), more...), boot); err != nil || longer != e {
			t.Fatalf("%+v became %+v, %v", e, longer, err)
		}
	})
}
