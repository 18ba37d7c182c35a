package monitor

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzRecordOfALaterVersion decodes records: what stands behind a record changes
// nothing, and the JSON form is one object with a type.
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
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var j eventJSON
		if err := json.Unmarshal(text, &j); err != nil || j.Type != e.Type.String() || j.Endpoint != e.Endpoint || bytes.ContainsRune(text, '\n') {
			t.Fatalf("%s: %v", text, err)
		}
	})
}
