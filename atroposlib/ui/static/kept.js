// Data of an exported page; null on a served one. Modules that only exports have add functions to it.

const place = document.getElementById("kept");
export const kept = place && JSON.parse(place.textContent);
